//! A copy of a job's control page.
//!
//! The page is read from a descriptor of some process, from the file of a rank's mapping, or from
//! the memory of a rank. It is copied, not mapped: a copy cannot change while it is read, and a
//! file that is too short causes a short read instead of a signal.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use hostbuf::segment::CONTROL_LENGTH;
use hostbuf::segment::{Control, Identity, Ledger, Registered};
use hostbuf::{Error, FillState};

const LENGTH: usize = CONTROL_LENGTH as usize;

#[repr(C, align(4096))]
struct PageBytes([u8; LENGTH]);

/// A copy of the page.
struct PageCopy(Box<UnsafeCell<PageBytes>>);

impl PageCopy {
    fn read(file: &File, offset: u64) -> io::Result<PageCopy> {
        let mut page = Box::new(UnsafeCell::new(PageBytes([0; LENGTH])));
        file.read_exact_at(&mut page.get_mut().0, offset)?;
        Ok(PageCopy(page))
    }

    /// Returns whether the page has not been written yet.
    fn is_blank(&self) -> bool {
        // SAFETY: the copy belongs to this process, and no other reference to it exists.
        let page = unsafe { &*self.0.get() };
        page.0.iter().all(|&byte| byte == 0)
    }

    fn control(&self) -> Control {
        // SAFETY: the copy is readable, writable, aligned and as long as the control page, and no
        // handle outlives it.
        unsafe { Control::at(self.0.get() as usize) }
    }
}

/// The mutable state of a buffer at one moment. A field is an error if its word is damaged.
#[derive(Clone, Debug)]
pub struct BufferState {
    /// The fill state.
    pub fill: Result<FillState, String>,
    /// The number of times that filling has begun.
    pub generation: Result<u64, String>,
    /// The number of bytes that the arena has allocated.
    pub high_water: Result<u64, String>,
}

/// The contents of the control page.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The immutable part.
    pub identity: Identity,
    /// The states of the buffers, in the order of the identity.
    pub states: Vec<BufferState>,
    /// The registrations of all processes, including those that have ended. A damaged entry is an
    /// error.
    pub registrations: Vec<Result<Registered, String>>,
    /// The number of registrations for which the list had no room.
    pub unlisted: Result<u64, String>,
}

/// A source from which a control page can be read.
pub enum PageSource<'a> {
    /// A file: `/proc/PID/fd/N` or `/proc/PID/map_files/...`.
    File(&'a Path),
    /// The memory of a process, and the page's address there.
    Memory(i32, u64),
}

impl PageSource<'_> {
    fn open(&self) -> io::Result<(File, u64)> {
        // The name may belong to a pipe, whose other end must not be waited for.
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        match self {
            PageSource::File(path) => Ok((options.open(path)?, 0)),
            PageSource::Memory(pid, address) => Ok((options.open(format!("/proc/{pid}/mem"))?, *address)),
        }
    }

    /// Reads and checks the page.
    ///
    /// # Errors
    /// The error of `open(2)` if the source cannot be read. The inner error describes a damaged
    /// page.
    pub fn read(&self) -> io::Result<Result<Snapshot, String>> {
        let (file, offset) = self.open()?;
        if let PageSource::File(_) = self {
            let found = file.metadata()?;
            if found.len() != CONTROL_LENGTH || !found.is_file() {
                let word = "the control page's length";
                return Ok(Err(Error::Corrupt { word, found: found.len() }.to_string()));
            }
        }
        // A word may be torn if it is written while it is copied. Only lasting damage is reported.
        let mut last = snapshot(&PageCopy::read(&file, offset)?);
        for _ in 0..4 {
            if last.as_ref().is_ok_and(Snapshot::is_sound) {
                break;
            }
            last = snapshot(&PageCopy::read(&file, offset)?);
        }
        Ok(last)
    }
}

impl Snapshot {
    fn is_sound(&self) -> bool {
        self.states.iter().all(|s| s.fill.is_ok() && s.generation.is_ok() && s.high_water.is_ok())
            && self.registrations.iter().all(Result::is_ok)
            && self.unlisted.is_ok()
    }
}

fn snapshot(copy: &PageCopy) -> Result<Snapshot, String> {
    if copy.is_blank() {
        return Err("the job is still being made: its ranks have not agreed on an address yet".into());
    }
    let control = copy.control();
    let identity = control.identity().map_err(|e| e.to_string())?;
    let state = |index: usize| BufferState {
        fill: control.fill(index).map_err(|e| e.to_string()),
        generation: control.generation(index).map_err(|e| e.to_string()),
        high_water: control.high_water(index).map_err(|e| e.to_string()),
    };
    let registrations = Ledger::new(control).registrations();
    Ok(Snapshot {
        states: (0..identity.buffers().len()).map(state).collect(),
        registrations: registrations.into_iter().map(|r| r.map_err(|e| e.to_string())).collect(),
        unlisted: Ledger::new(control).unlisted().map_err(|e| e.to_string()),
        identity,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostbuf::Pages;
    use hostbuf::segment::{BufferIdentity, ControlPage};
    use hostbuf_memory::memfd::{self, Backing};
    use std::os::fd::{AsFd, AsRawFd, OwnedFd};
    use std::path::PathBuf;

    fn page() -> (OwnedFd, PathBuf) {
        let fd = memfd::create("hostbuf-test", CONTROL_LENGTH, Backing::Shmem).unwrap();
        let page = ControlPage::map(fd.as_fd()).unwrap();
        let mut identity = Identity::new(7);
        identity.count = 1;
        identity.buffers[0] = BufferIdentity::new("index", Pages::Small);
        page.control().publish(identity);
        page.control().reset(0);
        page.control().set_generation(0, 3);
        let path = PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        (fd, path)
    }

    #[test]
    fn a_page_is_read_through_its_descriptor_and_through_memory() {
        let (fd, path) = page();
        let mapped = ControlPage::map(fd.as_fd()).unwrap();
        let address = mapped.control().address() as u64;
        for source in
            [PageSource::File(&path), PageSource::Memory(i32::try_from(std::process::id()).unwrap(), address)]
        {
            let snapshot = source.read().unwrap().unwrap();
            assert_eq!(snapshot.identity.buffers()[0].name(), "index");
            assert_eq!(snapshot.states[0].generation, Ok(3));
            assert_eq!(snapshot.states[0].fill, Ok(FillState::Empty));
        }
    }

    #[test]
    fn any_flipped_byte_gives_a_message() {
        let (fd, path) = page();
        let file = OpenOptions::new().write(true).read(true).open(&path).unwrap();
        let good = PageSource::File(&path).read().unwrap().unwrap();
        for at in (0..CONTROL_LENGTH).step_by(7) {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 0xff], at).unwrap();
            match PageSource::File(&path).read().unwrap() {
                Err(why) => assert!(why.contains("damaged") || why.contains("version"), "{why}"),
                Ok(read) => {
                    assert_eq!(read.identity, good.identity, "byte {at}");
                    assert!(read.registrations.iter().all(Result::is_err), "byte {at}");
                }
            }
            file.write_all_at(&byte, at).unwrap();
        }
        drop(fd);
        let short = memfd::create("hostbuf-test", 16, Backing::Shmem).unwrap();
        let path = PathBuf::from(format!("/proc/self/fd/{}", short.as_raw_fd()));
        assert!(PageSource::File(&path).read().unwrap().unwrap_err().contains("length"));
    }
}
