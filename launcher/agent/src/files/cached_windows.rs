//! The parts of a file that the page cache has before the file is read.

#![allow(unsafe_code, reason = "a system call that looks at a mapping by its address")]

use std::fs::File;
use std::os::fd::AsFd;

use hostbuf_memory::FileMapping;
use hostbuf_os::memory;
use hostbuf_staging::cached_pages_in;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

/// The windows of a file of which the page cache has no page before the file is read. Reading drops
/// them from the page cache again, so that the file does not occupy the memory of the host twice.
#[derive(Debug)]
pub(super) struct CachedWindows<'a> {
    file: &'a File,
    window: u64,
    /// For each window in order, whether the page cache has no page of it.
    absent: Vec<bool>,
}

impl CachedWindows<'_> {
    /// Examines a file of `bytes` bytes in windows of `window` bytes. If the kernel does not report
    /// it, no window counts as absent.
    pub(super) fn of(file: &File, bytes: u64, window: u64) -> CachedWindows<'_> {
        let starts = (0..bytes).step_by(window as usize);
        let is_absent = |start: u64| {
            let end = (start + window).min(bytes);
            match cached_pages_in(file, start..end) {
                Ok(pages) => pages.cached == 0,
                // Before Linux 6.5.
                Err(_) => has_no_resident_page(file, start, end - start),
            }
        };
        CachedWindows { file, window, absent: starts.map(is_absent).collect() }
    }

    /// Returns whether the page cache has pages of less than half of the windows.
    pub(super) fn are_mostly_absent(&self) -> bool {
        self.absent.iter().filter(|absent| **absent).count() * 2 > self.absent.len()
    }

    /// Drops the window at `start`, which has been read, from the page cache if it was not there
    /// before.
    pub(super) fn drop_read(&self, start: u64) {
        if self.absent.get((start / self.window) as usize) != Some(&true) {
            return;
        }
        let advice = PosixFadviseAdvice::POSIX_FADV_DONTNEED;
        // Pages that stay are reclaimed when another program needs the memory.
        if let Err(error) = posix_fadvise(self.file, start as i64, self.window as i64, advice) {
            tracing::warn!(%error, "the page cache keeps a file that was loaded");
        }
    }

    /// Drops all windows that were not in the page cache before: the kernel reads ahead, beyond the
    /// window of a thread.
    pub(super) fn drop_all_read(&self) {
        (0..self.absent.len() as u64).for_each(|number| self.drop_read(number * self.window));
    }
}

/// Returns whether `mincore(2)` shows no page of a part of a file. For a file that this user may
/// not write, the kernel shows all pages.
fn has_no_resident_page(file: &File, start: u64, length: u64) -> bool {
    let page = memory::page_size();
    let Ok(mapping) = FileMapping::read_only(file.as_fd(), start, length, page as usize) else {
        return false;
    };
    let mut pages = vec![1u8; length.div_ceil(page) as usize];
    // SAFETY: the part is mapped, and there is a byte for each of its pages.
    let failed =
        unsafe { libc::mincore(mapping.start() as *mut _, length as usize, pages.as_mut_ptr()) } != 0;
    !failed && pages.iter().all(|page| page & 1 == 0)
}

#[cfg(test)]
mod tests {
    use super::super::read::FileRead;
    use super::super::window_share::{WINDOW, WindowShare};
    use super::*;
    use hostbuf_memory::memfd::{self, Backing};
    use hostbuf_staging::{Backend, FileOptions, cached_pages, drop_cached_pages};
    use std::convert::Infallible;
    use std::io::Read;
    use std::time::{Duration, Instant};

    /// A file of three windows in the folder for temporary files, which is removed at the end.
    struct ThreeWindows(std::path::PathBuf);

    impl ThreeWindows {
        const BYTES: u64 = 3 * WINDOW - 5;

        fn new(name: &str) -> ThreeWindows {
            let path = std::env::temp_dir().join(format!("hostbuf-{name}-{}", std::process::id()));
            std::fs::write(&path, vec![7; ThreeWindows::BYTES as usize]).unwrap();
            ThreeWindows(path)
        }
    }

    impl Drop for ThreeWindows {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_read_keeps_in_the_page_cache_only_what_was_there() {
        let made = ThreeWindows::new("cached");
        let file = FileOptions::new().backend(Backend::Posix).open(&made.0).unwrap();
        drop_cached_pages(file.as_std()).unwrap();
        if !cached_pages(file.as_std()).is_ok_and(|pages| pages.cached == 0) {
            eprintln!("skipped: the folder for temporary files is in memory, or Linux is older than 6.5");
            return;
        }
        // The first window is in the page cache.
        File::open(&made.0).unwrap().take(4096).read_to_end(&mut Vec::new()).unwrap();
        let windows = CachedWindows::of(file.as_std(), ThreeWindows::BYTES, WINDOW);
        assert_eq!(windows.absent, [false, true, true]);
        assert!(windows.are_mostly_absent());
        for start in [0, WINDOW, 2 * WINDOW] {
            let is_absent = has_no_resident_page(file.as_std(), start, WINDOW - 5);
            assert_eq!(is_absent, start > 0, "{start}");
        }
        let memory = memfd::create("hostbuf-test", ThreeWindows::BYTES, Backing::Shmem).unwrap();
        let mapping = FileMapping::new(memory.as_fd(), 0, ThreeWindows::BYTES, 4096).unwrap();
        let read = FileRead::new(&file, &mapping, &windows, WindowShare::ALL);
        for round in WindowShare::ALL.rounds(ThreeWindows::BYTES) {
            let Ok(()) = read.read::<Infallible>(round, None, &mut || {}).unwrap();
        }
        let begun = Instant::now();
        let others = || cached_pages_in(file.as_std(), WINDOW..ThreeWindows::BYTES).unwrap();
        // The kernel drops no page that something holds for a moment, and reports no error.
        loop {
            windows.drop_all_read();
            if others().cached == 0 || begun.elapsed() > Duration::from_secs(20) {
                break;
            }
            std::thread::yield_now();
        }
        let kept = cached_pages_in(file.as_std(), 0..WINDOW).unwrap();
        assert_eq!(kept.cached, kept.pages, "it was there");
        assert_eq!(others().cached, 0);
    }

    #[test]
    fn a_file_in_the_page_cache_is_present() {
        let made = ThreeWindows::new("present");
        let file = File::open(&made.0).unwrap();
        let windows = CachedWindows::of(&file, ThreeWindows::BYTES, WINDOW);
        assert_eq!(windows.absent, [false; 3]);
        assert!(!windows.are_mostly_absent());
    }
}
