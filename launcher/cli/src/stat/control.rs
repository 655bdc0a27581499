//! A copy of a job's control page.
//!
//! It is read through whatever way the kernel gives: a descriptor that some process holds, the mapping of a rank
//! by its file, the memory of a rank. It is copied and not mapped: the copy cannot change under the reader, and a
//! file that is shorter than it should be gives a short read and no signal.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use hostbuf::segment::CONTROL_LENGTH;
use hostbuf::segment::{Control, Identity, Ledger, Registered};
use hostbuf::{Error, Fill};

const LENGTH: usize = CONTROL_LENGTH as usize;

#[repr(C, align(4096))]
struct Page([u8; LENGTH]);

/// The copy.
struct PageCopy(Box<UnsafeCell<Page>>);

impl PageCopy {
    fn read(file: &File, offset: u64) -> io::Result<PageCopy> {
        let mut page = Box::new(UnsafeCell::new(Page([0; LENGTH])));
        file.read_exact_at(&mut page.get_mut().0, offset)?;
        Ok(PageCopy(page))
    }

    /// Whether nobody has written the page yet.
    fn is_blank(&self) -> bool {
        // SAFETY: a copy of this process's own, which nobody else touches.
        let page = unsafe { &*self.0.get() };
        page.0.iter().all(|&byte| byte == 0)
    }

    fn control(&self) -> Control {
        // SAFETY: readable, writable and aligned, of the control page's length; the callers let no handle outlive
        // this copy.
        unsafe { Control::at(self.0.get() as usize) }
    }
}

/// What changes about a buffer, as it was in one moment. An error where the word is damaged.
#[derive(Clone, Debug)]
pub struct State {
    /// How far the filling is.
    pub fill: Result<Fill, String>,
    /// How many times filling has begun.
    pub generation: Result<u64, String>,
    /// Bytes given out by the arena.
    pub high_water: Result<u64, String>,
}

/// What the control page says.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// What never changes.
    pub identity: Identity,
    /// One for each buffer of the identity.
    pub states: Vec<State>,
    /// What its processes have registered, and those that have gone since; an error for each entry that is damaged.
    pub registrations: Vec<Result<Registered, String>>,
    /// How many registrations found no room in the list.
    pub unlisted: Result<u64, String>,
}

/// Where a control page can be read.
pub enum Source<'a> {
    /// A file of it: `/proc/PID/fd/N` or `/proc/PID/map_files/...`.
    File(&'a Path),
    /// The memory of a process, and the page's address there.
    Memory(i32, u64),
}

impl Source<'_> {
    fn open(&self) -> io::Result<(File, u64)> {
        // A name says nothing sure about what is behind it: never wait for the other end of a pipe.
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        match self {
            Source::File(path) => Ok((options.open(path)?, 0)),
            Source::Memory(pid, address) => Ok((options.open(format!("/proc/{pid}/mem"))?, *address)),
        }
    }

    /// Reads and checks the page.
    ///
    /// # Errors
    /// As `open(2)` when there is no way in from here; a damaged page is the inner error.
    pub fn read(&self) -> io::Result<Result<Snapshot, String>> {
        let (file, offset) = self.open()?;
        if let Source::File(_) = self {
            let found = file.metadata()?;
            if found.len() != CONTROL_LENGTH || !found.is_file() {
                let word = "the control page's length";
                return Ok(Err(Error::Corrupt { word, found: found.len() }.to_string()));
            }
        }
        // A word that is being written while it is copied may come apart: what is damaged stays so.
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
    let state = |index: usize| State {
        fill: control.fill(index).map_err(|e| e.to_string()),
        generation: control.generation(index).map_err(|e| e.to_string()),
        high_water: control.high_water(index).map_err(|e| e.to_string()),
    };
    let registrations = Ledger::of(control).registrations();
    Ok(Snapshot {
        states: (0..identity.buffers().len()).map(state).collect(),
        registrations: registrations.into_iter().map(|r| r.map_err(|e| e.to_string())).collect(),
        unlisted: Ledger::of(control).unlisted().map_err(|e| e.to_string()),
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
            [Source::File(&path), Source::Memory(i32::try_from(std::process::id()).unwrap(), address)]
        {
            let snapshot = source.read().unwrap().unwrap();
            assert_eq!(snapshot.identity.buffers()[0].name(), "index");
            assert_eq!(snapshot.states[0].generation, Ok(3));
            assert_eq!(snapshot.states[0].fill, Ok(Fill::Empty));
        }
    }

    #[test]
    fn any_flipped_byte_is_a_message() {
        let (fd, path) = page();
        let file = OpenOptions::new().write(true).read(true).open(&path).unwrap();
        let good = Source::File(&path).read().unwrap().unwrap();
        for at in (0..CONTROL_LENGTH).step_by(7) {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 0xff], at).unwrap();
            match Source::File(&path).read().unwrap() {
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
        assert!(Source::File(&path).read().unwrap().unwrap_err().contains("length"));
    }
}
