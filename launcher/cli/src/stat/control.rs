//! A copy of a job's identity and control page.
//!
//! They are read from descriptors of some process, from the files of a rank's mappings, or from the
//! memory of a rank. They are copied, not mapped: a copy cannot change while it is read, and a file
//! that is too short causes a short read instead of a signal.

#![allow(unsafe_code, reason = "reads the copy of a control page through the type for mapped pages")]

use std::cell::UnsafeCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use hostbuf::segment::{Control, ControlLayout, Identity, Ledger, MAX_GPU_PIECES, MAX_SECTIONS, Registered};
use hostbuf::{Error, FillState, Phase};
use hostbuf_protocol::limits::MAX_BUFFERS;

/// One cache line, the alignment of a control page.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

/// A copy of a control page.
struct PageCopy {
    lines: Box<[UnsafeCell<CacheLine>]>,
    layout: ControlLayout,
}

impl PageCopy {
    fn read(file: &File, offset: u64, layout: ControlLayout) -> io::Result<PageCopy> {
        let mut bytes = vec![0; layout.length() as usize];
        file.read_exact_at(&mut bytes, offset)?;
        let (lines, _) = bytes.as_chunks();
        let lines = lines.iter().map(|&line| UnsafeCell::new(CacheLine(line))).collect();
        Ok(PageCopy { lines, layout })
    }

    fn control(&self) -> Control<'_> {
        // SAFETY: the copy is readable, writable, aligned and as long as the layout states, and the
        // handle borrows it.
        unsafe { Control::at(self.lines.as_ptr() as usize, self.layout) }
    }
}

/// The mutable state of a buffer at one moment. A field is an error if its word is damaged.
#[derive(Clone, Debug)]
pub(crate) struct BufferState {
    /// The fill state.
    pub fill: Result<FillState, String>,
    /// The number of times that filling has begun.
    pub generation: Result<u64, String>,
    /// The number of bytes that the arena has allocated.
    pub high_water: Result<u64, String>,
    /// The address of the range of the GPU sections, if they are mapped, and whether each of
    /// those of the buffer is frozen.
    pub gpu: Result<(Option<u64>, Vec<bool>), String>,
}

/// The contents of the identity and of the control page.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    /// The identity.
    pub identity: Identity,
    /// The durations of the phases, indexed by [`Phase`].
    pub phases: [Duration; Phase::COUNT],
    /// The states of the buffers, in the order of the identity.
    pub states: Vec<BufferState>,
    /// The registrations of all processes, including those that have ended. A damaged entry is an
    /// error.
    pub registrations: Vec<Result<Registered, String>>,
    /// The number of registrations for which the list had no room.
    pub unlisted: Result<u64, String>,
}

/// A source from which a memory file can be read.
#[non_exhaustive]
pub enum PageSource<'a> {
    /// A file: `/proc/PID/fd/N` or `/proc/PID/map_files/...`.
    File(&'a Path),
    /// The memory of a process, and the address there.
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

    /// Reads and checks the control page of the job with this identity.
    ///
    /// # Errors
    /// The error of `open(2)` if the source cannot be read. The inner error describes a damaged
    /// page.
    pub fn read(&self, identity: &Identity, layout: ControlLayout) -> io::Result<Result<Snapshot, String>> {
        let (file, offset) = self.open()?;
        if let PageSource::File(_) = self {
            let found = file.metadata()?;
            if found.len() < layout.length() || !found.is_file() {
                let word = "the control page's length";
                return Ok(Err(Error::Corrupt { word, found: found.len() }.to_string()));
            }
        }
        let read = || Ok::<_, io::Error>(snapshot(identity, &PageCopy::read(&file, offset, layout)?));
        // A word may be torn if it is written while it is copied. Only lasting damage is reported.
        let mut last = read()?;
        for _ in 0..4 {
            if last.is_sound() {
                break;
            }
            last = read()?;
        }
        Ok(Ok(last))
    }
}

/// Reads and checks a job's identity.
///
/// # Errors
/// The error of `open(2)` if the source cannot be read. The inner error describes a damaged
/// identity.
pub fn read_identity(source: &PageSource<'_>) -> io::Result<Result<(Identity, ControlLayout), String>> {
    let (file, offset) = source.open()?;
    let mut bytes =
        vec![0; Identity::file_length(MAX_BUFFERS, MAX_SECTIONS + MAX_BUFFERS, MAX_GPU_PIECES) as usize];
    let mut length = 0;
    // The identity of a job with few buffers ends before: with the file, or with the mapping.
    while length < bytes.len() {
        match file.read_at(&mut bytes[length..], offset + length as u64) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(_) if length > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(Identity::decode(&bytes[..length]).map_err(|e| e.to_string()))
}

impl Snapshot {
    fn is_sound(&self) -> bool {
        self.states
            .iter()
            .all(|s| s.fill.is_ok() && s.generation.is_ok() && s.high_water.is_ok() && s.gpu.is_ok())
            && self.registrations.iter().all(Result::is_ok)
            && self.unlisted.is_ok()
    }
}

fn snapshot(identity: &Identity, copy: &PageCopy) -> Snapshot {
    let control = copy.control();
    let state = |index: usize| BufferState {
        fill: control.fill(index).map_err(|e| e.to_string()),
        generation: control.generation(index).map_err(|e| e.to_string()),
        high_water: control.high_water(index).map_err(|e| e.to_string()),
        gpu: gpu_state(control, identity, index).map_err(|e| e.to_string()),
    };
    let registrations = Ledger::new(control).registrations();
    Snapshot {
        identity: identity.clone(),
        phases: control.phases(),
        states: (0..identity.buffers.len()).map(state).collect(),
        registrations: registrations.into_iter().map(|r| r.map_err(|e| e.to_string())).collect(),
        unlisted: Ledger::new(control).unlisted().map_err(|e| e.to_string()),
    }
}

/// Reads the state of the GPU sections of the buffer with this index.
fn gpu_state(
    control: Control<'_>,
    identity: &Identity,
    index: usize,
) -> hostbuf::Result<(Option<u64>, Vec<bool>)> {
    let sections = identity.gpu_sections(index).count();
    let frozen = (0..sections).map(|section| control.is_gpu_frozen(index, section));
    Ok((control.gpu_range(index)?, frozen.collect::<hostbuf::Result<_>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostbuf::Pages;
    use hostbuf::segment::{BufferIdentity, ControlPage};
    use hostbuf_memory::memfd::{self, Backing};
    use std::os::fd::{AsFd, AsRawFd, OwnedFd};
    use std::path::PathBuf;

    fn page() -> (OwnedFd, PathBuf, Identity, ControlLayout) {
        let layout = ControlLayout::new(1);
        let fd = memfd::create("hostbuf-test", layout.length(), Backing::Shmem).unwrap();
        let page = ControlPage::map(fd.as_fd(), layout).unwrap();
        let mut identity = Identity::new(7);
        identity.buffers.push(BufferIdentity::new("index", Pages::Small));
        page.control().reset(0);
        page.control().set_generation(0, 3);
        let path = PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        (fd, path, identity, layout)
    }

    #[test]
    fn an_identity_and_a_page_are_read_through_descriptors_and_through_memory() {
        let (fd, path, identity, layout) = page();
        let bytes = identity.encode();
        let length = Identity::file_length(1, 0, 0);
        let file = memfd::create("hostbuf-test", length, Backing::Shmem).unwrap();
        memfd::write(file.as_fd(), &bytes).unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let identity_path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        for source in [PageSource::File(&identity_path), PageSource::Memory(own, bytes.as_ptr() as u64)] {
            assert_eq!(read_identity(&source).unwrap().unwrap(), (identity.clone(), layout));
        }
        let mapped = ControlPage::map(fd.as_fd(), layout).unwrap();
        let address = mapped.control().address() as u64;
        for source in [PageSource::File(&path), PageSource::Memory(own, address)] {
            let snapshot = source.read(&identity, layout).unwrap().unwrap();
            assert_eq!(snapshot.identity.buffers[0].name(), "index");
            assert_eq!(snapshot.states[0].generation, Ok(3));
            assert_eq!(snapshot.states[0].fill, Ok(FillState::Empty));
        }
    }

    #[test]
    fn any_flipped_byte_is_damage_or_changes_nothing() {
        let (fd, path, identity, layout) = page();
        let file = OpenOptions::new().write(true).read(true).open(&path).unwrap();
        let read = || PageSource::File(&path).read(&identity, layout).unwrap();
        let good = read().unwrap();
        for at in (0..layout.length()).step_by(29) {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 0xff], at).unwrap();
            let found = read().unwrap();
            for (state, good) in found.states.iter().zip(&good.states) {
                for (found, good) in
                    [(&state.generation, &good.generation), (&state.high_water, &good.high_water)]
                {
                    assert!(found.is_err() || found == good, "byte {at}");
                }
            }
            assert!(found.registrations.iter().all(Result::is_err), "byte {at}");
            file.write_all_at(&byte, at).unwrap();
        }
        drop(fd);
        let short = memfd::create("hostbuf-test", 16, Backing::Shmem).unwrap();
        let path = PathBuf::from(format!("/proc/self/fd/{}", short.as_raw_fd()));
        let short = PageSource::File(&path);
        assert!(short.read(&identity, layout).unwrap().unwrap_err().contains("length"));
        assert!(read_identity(&short).unwrap().is_err());
    }
}
