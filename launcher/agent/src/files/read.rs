//! Reads a file into mapped memory by several threads.

#![allow(unsafe_code, reason = "reads into a mapping by its address")]

use std::io;
use std::ops::{Range, RangeInclusive};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use hostbuf_memory::FileMapping;
use hostbuf_os::cores::Cores;
use hostbuf_staging::{File, ReadAt};

use super::cached_windows::CachedWindows;
use super::window_share::{WindowShare, place};

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

/// A file that is being read, and the mapping that gets its bytes. The page cache keeps only what
/// `cached` has found there.
pub(super) struct FileRead<'a> {
    file: &'a File,
    mapping: &'a FileMapping,
    cached: &'a CachedWindows<'a>,
    share: WindowShare,
    /// The next window that no thread has claimed.
    next: AtomicU64,
    /// The number of bytes read.
    done: AtomicU64,
    failure: Mutex<Option<ReadFailure>>,
}

impl<'a> FileRead<'a> {
    /// Makes the state of reading the windows of `share` into a mapping of the length of the file,
    /// whose pages exist.
    pub(super) fn new(
        file: &'a File,
        mapping: &'a FileMapping,
        cached: &'a CachedWindows<'a>,
        share: WindowShare,
    ) -> FileRead<'a> {
        let (next, done, failure) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::new(None));
        FileRead { file, mapping, cached, share, next, done, failure }
    }

    /// Returns the number of bytes read.
    pub(super) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Reads the windows of this host in `round` by several threads. This thread calls `meanwhile`
    /// first, and then reads too, and calls `progress` after each window.
    ///
    /// # Errors
    /// The first failure of a thread; the others end after their windows. Otherwise the error of
    /// `meanwhile`.
    pub(super) fn read<E>(
        &self,
        round: Range<u64>,
        meanwhile: Option<&mut dyn FnMut() -> Result<(), E>>,
        progress: &mut dyn FnMut(),
    ) -> Result<Result<(), E>, ReadFailure> {
        let own = round.clone().filter(|&window| self.share.is_own(window)).count();
        let threads = Cores::own().threads().clamp(*THREADS.start(), *THREADS.end()).min(own);
        self.next.store(round.start, Ordering::Relaxed);
        let others = if meanwhile.is_some() { threads } else { threads.saturating_sub(1) };
        let result = std::thread::scope(|scope| {
            // If a thread cannot be started, the others do its part.
            for _ in 0..others {
                let _ = std::thread::Builder::new().spawn_scoped(scope, || self.run(round.end, &mut || {}));
            }
            let result = meanwhile.map_or(Ok(()), |work| work());
            if result.is_ok() {
                self.run(round.end, progress);
            } else {
                // No thread claims another window.
                self.next.store(round.end, Ordering::Relaxed);
            }
            result
        });
        match self.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(failure) => Err(failure),
            None => Ok(result),
        }
    }

    /// Reads windows below `end` until none is left, or a thread has failed.
    fn run(&self, end: u64, progress: &mut dyn FnMut()) {
        loop {
            let window = self.next.fetch_add(1, Ordering::Relaxed);
            if window >= end {
                return;
            }
            if !self.share.is_own(window) {
                continue;
            }
            if let Err(failure) = self.read_window(window) {
                self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
                self.next.store(end, Ordering::Relaxed);
            }
            progress();
        }
    }

    fn read_window(&self, window: u64) -> Result<(), ReadFailure> {
        let Range { start, end } = place(window, self.mapping.len());
        let wanted = (end - start) as usize;
        // Reads that bypass the page cache have whole blocks, of at most 4096 bytes. The last page
        // of the mapping is whole too.
        let room = wanted.next_multiple_of(self.file.alignment() as usize);
        let memory = (self.mapping.start() + start as usize) as *mut u8;
        // SAFETY: the mapping has all pages that contain its bytes, and this thread has claimed
        // the window: nothing else accesses it until the round has ended.
        let window = unsafe { std::slice::from_raw_parts_mut(memory, room) };
        let mut done = 0;
        while done < wanted {
            match self.file.read_non_temporal_at(&mut window[done..], start + done as u64) {
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
    use super::super::window_share::WINDOW;
    use super::*;
    use hostbuf_memory::memfd::{self, Backing};
    use std::convert::Infallible;
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
        let read = FileRead::new(file, &mapping, &cached, WindowShare::ALL);
        let mut last = 0;
        for round in WindowShare::ALL.rounds(bytes) {
            let Ok(()) = read.read::<Infallible>(round, None, &mut || {
                assert!((last..=bytes).contains(&read.done()));
                last = read.done();
            })?;
        }
        assert_eq!(read.done(), bytes);
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
