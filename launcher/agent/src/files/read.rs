//! Reads a file into mapped memory by several threads.

#![allow(unsafe_code, reason = "reads into a mapping by its address")]

use std::io;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use hostbuf_memory::FileMapping;
use hostbuf_os::cores::Cores;
use hostbuf_staging::{File, ReadAt};

use super::cached_windows::CachedWindows;
use super::window_share::{WINDOW, WindowShare};

/// The numbers of threads that read. Threads that wait for a disk need no core.
const THREADS: RangeInclusive<usize> = 4..=16;

/// The reason why a file could not be read.
#[derive(Debug)]
pub(super) enum ReadFailure {
    /// The file ends before its length.
    Ended,
    /// The kernel has refused a read.
    Refused(io::Error),
}

/// A file that is being read, and the mapping that gets its bytes.
struct FileRead<'a> {
    file: &'a File,
    mapping: &'a FileMapping,
    cached: &'a CachedWindows<'a>,
    share: WindowShare,
    /// The number of windows to read.
    windows: u64,
    bytes: u64,
    /// The number of windows that threads have claimed.
    next: AtomicU64,
    done: AtomicU64,
    failure: Mutex<Option<ReadFailure>>,
}

/// Reads the windows of `share` of a file into a mapping of its length, whose pages exist. The page
/// cache keeps only what `cached` has found there. `progress` is called with the number of bytes
/// read so far. Returns the number of bytes read.
///
/// # Errors
/// The first failure of a thread; the others end after their windows.
pub(super) fn read_into(
    file: &File,
    mapping: &FileMapping,
    cached: &CachedWindows<'_>,
    share: WindowShare,
    progress: &mut dyn FnMut(u64),
) -> Result<u64, ReadFailure> {
    let (bytes, failure) = (mapping.len(), Mutex::new(None));
    let windows = share.count(bytes);
    let read =
        FileRead { file, mapping, cached, share, windows, bytes, next: 0.into(), done: 0.into(), failure };
    let most = usize::try_from(windows).unwrap_or(usize::MAX);
    let threads = Cores::own().threads().clamp(*THREADS.start(), *THREADS.end()).min(most);
    std::thread::scope(|scope| {
        // If a thread cannot be started, the others do its part.
        for _ in 1..threads {
            let _ = std::thread::Builder::new().spawn_scoped(scope, || read.run(&mut |_| {}));
        }
        read.run(progress);
    });
    let done = read.done.load(Ordering::Relaxed);
    progress(done);
    cached.drop_all_read();
    match read.failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(failure) => Err(failure),
        None => Ok(done),
    }
}

impl FileRead<'_> {
    /// Reads windows until none is left, or a thread has failed. `progress` is called with the
    /// number of bytes that all threads have read.
    fn run(&self, progress: &mut dyn FnMut(u64)) {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.windows {
                return;
            }
            if let Err(failure) = self.read_window(self.share.window(number) * WINDOW) {
                self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
                // No thread claims another window.
                self.next.store(self.windows, Ordering::Relaxed);
            }
            progress(self.done.load(Ordering::Relaxed));
        }
    }

    fn read_window(&self, start: u64) -> Result<(), ReadFailure> {
        let wanted = (self.bytes - start).min(WINDOW) as usize;
        // Reads past the page cache have whole blocks, of at most 4096 bytes. The last page of the
        // mapping is whole too.
        let room = wanted.next_multiple_of(self.file.alignment() as usize);
        let memory = (self.mapping.start() + start as usize) as *mut u8;
        // SAFETY: the mapping has all pages that contain its bytes, and this thread has claimed
        // the window: nothing else accesses it until the file is sealed.
        let window = unsafe { std::slice::from_raw_parts_mut(memory, room) };
        let mut done = 0;
        while done < wanted {
            match self.file.read_at(&mut window[done..], start + done as u64) {
                Ok(0) => return Err(ReadFailure::Ended),
                Ok(bytes) => done += bytes.min(room - done),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ReadFailure::Refused(error)),
            }
        }
        self.cached.drop_read(start);
        self.done.fetch_add(wanted as u64, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostbuf_memory::memfd::{self, Backing};
    use std::os::fd::AsFd;
    use std::path::PathBuf;

    /// A file in the folder for temporary files, which is removed at the end.
    struct TemporaryFile(PathBuf);

    impl TemporaryFile {
        fn new(name: &str, bytes: &[u8]) -> TemporaryFile {
            let path = std::env::temp_dir().join(format!("hostbuf-{name}-{}", std::process::id()));
            std::fs::write(&path, bytes).unwrap();
            TemporaryFile(path)
        }
    }

    impl Drop for TemporaryFile {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    /// Reads `bytes` bytes of a file, and returns them with the rest of their last page.
    fn read(file: &File, bytes: u64) -> Result<Vec<u8>, ReadFailure> {
        let memory = memfd::create("hostbuf-test", bytes, Backing::Shmem).unwrap();
        let mapping = FileMapping::new(memory.as_fd(), 0, bytes, 4096).unwrap();
        let cached = CachedWindows::of(file.as_std(), bytes, WINDOW);
        let mut last = 0;
        read_into(file, &mapping, &cached, WindowShare::ALL, &mut |done| {
            assert!((last..=bytes).contains(&done));
            last = done;
        })?;
        assert_eq!(last, bytes);
        // SAFETY: the pages of the mapping exist, and only this test uses them.
        let found = unsafe { std::slice::from_raw_parts(mapping.start() as *const u8, bytes as usize) };
        Ok(found.to_vec())
    }

    #[test]
    fn every_byte_arrives_whatever_the_length() {
        let all: Vec<u8> = (0..3 * WINDOW as usize + 4097).map(|at| (at * 31 + at / 4096) as u8).collect();
        for length in [1, 511, 4096, 4097, WINDOW as usize - 1, WINDOW as usize, all.len()] {
            let file = TemporaryFile::new(&format!("read-{length}"), &all[..length]);
            for backend in [hostbuf_staging::Backend::Auto, hostbuf_staging::Backend::Posix] {
                let opened = hostbuf_staging::FileOptions::new().backend(backend).open(&file.0).unwrap();
                assert!(read(&opened, length as u64).unwrap() == all[..length], "{length} {backend}");
            }
        }
    }

    #[test]
    fn a_file_that_ends_early_is_an_error() {
        let file = TemporaryFile::new("short", &[7; 5000]);
        let opened = File::open(&file.0).unwrap();
        for bytes in [5001, 8192, 2 * WINDOW] {
            assert!(matches!(read(&opened, bytes), Err(ReadFailure::Ended)), "{bytes}");
        }
    }
}
