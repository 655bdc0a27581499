//! The blocks of a segment, as the broker keeps them.

#![allow(unsafe_code, reason = "kcmp(2) has no safe interface")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use hostbuf_os::PrivateFd;
use nix::sys::stat::{SFlag, fstat};

use crate::segment::{SegmentFile, SegmentGeometry};

/// The blocks of a segment.
#[derive(Debug)]
pub(super) enum SegmentData {
    /// A memory file.
    Host(PrivateFd),
    /// Memory of a GPU, once the producer has sent it.
    Gpu(Option<GpuFiles>),
}

/// The descriptors of memory of a GPU. The broker needs no GPU to keep them, and the memory exists
/// as long as it does.
#[derive(Debug)]
pub(super) struct GpuFiles {
    /// The memory, as the driver has exported it.
    memory: PrivateFd,
    /// The handles of the blocks' events.
    events: PrivateFd,
}

impl GpuFiles {
    /// Checks the descriptors that a client has sent. Only a driver can tell what memory the first
    /// one stands for: its readers find that out when they import it.
    ///
    /// # Errors
    /// The reason why they are not those of a segment.
    pub(super) fn check(
        memory: PrivateFd,
        events: PrivateFd,
        geometry: SegmentGeometry,
    ) -> Result<GpuFiles, String> {
        let stat = fstat(&memory).map_err(|errno| format!("checking the memory of a GPU: {errno}"))?;
        // The driver's descriptors are those of a device, or have no type.
        let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
        if [SFlag::S_IFSOCK, SFlag::S_IFIFO, SFlag::S_IFDIR, SFlag::S_IFBLK, SFlag::S_IFLNK].contains(&kind) {
            return Err("the descriptor of the memory of a GPU is a socket, a pipe or a directory".into());
        }
        if stat.st_nlink > 0 && kind == SFlag::S_IFREG {
            return Err("the descriptor of the memory of a GPU is a file with a name".into());
        }
        SegmentFile::Events.check(events.as_fd(), geometry).map_err(|error| error.to_string())?;
        Ok(GpuFiles { memory, events })
    }
}

impl SegmentData {
    /// Returns the number of descriptors of the blocks.
    pub(super) fn files(is_on_gpu: bool) -> usize {
        if is_on_gpu { 2 } else { 1 }
    }

    /// Checks the descriptors that a client has sent.
    ///
    /// # Errors
    /// The reason why they are not those of a segment.
    pub(super) fn check(
        is_on_gpu: bool,
        files: Vec<PrivateFd>,
        geometry: SegmentGeometry,
    ) -> Result<SegmentData, String> {
        let mut files = files.into_iter();
        match (is_on_gpu, files.next(), files.next(), files.next()) {
            (false, Some(data), None, None) => {
                SegmentFile::Data.check(data.as_fd(), geometry).map_err(|error| error.to_string())?;
                Ok(SegmentData::Host(data))
            }
            (true, Some(memory), Some(events), None) => {
                Ok(SegmentData::Gpu(Some(GpuFiles::check(memory, events, geometry)?)))
            }
            _ => Err("it has the wrong number of descriptors".into()),
        }
    }

    /// Returns the memory file, if it is one.
    pub(super) fn host(&self) -> Option<BorrowedFd<'_>> {
        match self {
            SegmentData::Host(data) => Some(data.as_fd()),
            SegmentData::Gpu(_) => None,
        }
    }

    /// Returns whether readers can attach the blocks.
    pub(super) fn is_there(&self) -> bool {
        !matches!(self, SegmentData::Gpu(None))
    }

    /// Returns whether both are the same blocks. Descriptors of the memory of a GPU are compared if
    /// the kernel does so (`CONFIG_KCMP`).
    pub(super) fn is_same(&self, other: &SegmentData) -> bool {
        match (self, other) {
            (SegmentData::Host(one), SegmentData::Host(other)) => is_same_file(one, other),
            (SegmentData::Gpu(Some(one)), SegmentData::Gpu(Some(other))) => {
                is_same_file(&one.events, &other.events)
                    && is_same_description(&one.memory, &other.memory).unwrap_or(true)
            }
            _ => false,
        }
    }

    /// Returns copies of the descriptors.
    ///
    /// # Errors
    /// As `dup(2)`.
    pub(super) fn try_clone(&self) -> io::Result<Vec<PrivateFd>> {
        match self {
            SegmentData::Host(data) => Ok(vec![data.try_clone()?]),
            SegmentData::Gpu(None) => Ok(Vec::new()),
            SegmentData::Gpu(Some(files)) => Ok(vec![files.memory.try_clone()?, files.events.try_clone()?]),
        }
    }
}

/// Returns whether two descriptors are of one file.
pub(super) fn is_same_file(a: &impl AsFd, b: &impl AsFd) -> bool {
    let identity = |file: BorrowedFd<'_>| fstat(file).ok().map(|stat| (stat.st_dev, stat.st_ino));
    identity(a.as_fd()).is_some() && identity(a.as_fd()) == identity(b.as_fd())
}

/// Returns whether two descriptors are copies of one, or `None` if the kernel does not tell. All
/// memory that a driver exports has one file, its device.
fn is_same_description(a: &impl AsRawFd, b: &impl AsRawFd) -> Option<bool> {
    const KCMP_FILE: libc::c_int = 0;
    let process = libc::pid_t::try_from(std::process::id()).ok()?;
    // SAFETY: it takes numbers only.
    let order =
        unsafe { libc::syscall(libc::SYS_kcmp, process, process, KCMP_FILE, a.as_raw_fd(), b.as_raw_fd()) };
    (order >= 0).then_some(order == 0)
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use hostbuf_memory::Seals;
    use hostbuf_memory::memfd::{self, Backing};

    fn geometry() -> SegmentGeometry {
        SegmentGeometry::new(4096, 4, 1).unwrap()
    }

    fn memory() -> PrivateFd {
        memfd::create("memory of a GPU", 2 << 20, Backing::Shmem).unwrap().into()
    }

    fn events() -> PrivateFd {
        let bytes = SegmentFile::Events.bytes(geometry());
        let file = memfd::create("events", bytes, Backing::Shmem).unwrap();
        memfd::seal(file.as_fd(), Seals::WRITE).unwrap();
        file.into()
    }

    #[test]
    fn descriptors_of_the_wrong_kind_or_number_are_refused() {
        let check = |files| SegmentData::check(true, files, geometry());
        assert!(check(vec![memory(), events()]).is_ok());
        let (pipe, _end) = nix::unistd::pipe().unwrap();
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let folder = OwnedFd::from(std::fs::File::open("/").unwrap());
        let named = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
        for wrong in [pipe, socket.into(), folder, named] {
            check(vec![PrivateFd::from(wrong), events()]).unwrap_err();
        }
        // A file of handles that their maker could change, or of another length.
        let open = memfd::create("events", SegmentFile::Events.bytes(geometry()), Backing::Shmem).unwrap();
        for wrong in [open.into(), memory()] {
            check(vec![memory(), wrong]).unwrap_err();
        }
        for wrong in [vec![], vec![memory()], vec![memory(), events(), events()]] {
            check(wrong).unwrap_err();
        }
        assert!(SegmentData::check(false, vec![memory(), events()], geometry()).is_err());
    }

    #[test]
    fn copies_of_descriptors_are_the_same_memory() {
        let (memory, events) = (memory(), events());
        let copy = |file: &PrivateFd| file.try_clone().unwrap();
        let of = |memory, events| SegmentData::Gpu(Some(GpuFiles { memory, events }));
        let one = of(copy(&memory), copy(&events));
        assert!(one.is_same(&of(copy(&memory), copy(&events))));
        assert!(!one.is_same(&of(copy(&memory), self::events())));
        assert!(!one.is_same(&SegmentData::Gpu(None)));
        // Two openings of a device are one file, and are not the same memory.
        let device = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        if is_same_description(&memory, &copy(&memory)).is_some() {
            assert_eq!(is_same_description(&device(), &device()), Some(false));
        }
    }
}
