//! Memory of this process alone, on huge pages where there are some.

#![allow(unsafe_code, reason = "maps memory, and unmaps it once")]

use std::io;
use std::num::NonZero;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{RwLock, mpsc};

use hostbuf_os::Bytes;
use hostbuf_os::cores::Cores;
use hostbuf_os::fork_guard::ForkGuard;

use crate::error::{Error, Result};
use crate::space;

/// The size of a transparent huge page, and of the parts in which threads populate.
const PART: usize = 2 << 20;

/// Populated memory of this process alone, on transparent huge pages if the kernel grants them.
/// Forked children do not have it, and neither do core files. Dropping it unmaps it.
///
/// It is ready in half the time that a memory file needs, whose huge pages most hosts do not grant.
/// A cgroup that limits this process kills it if the limit is reached meanwhile, whereas an
/// [`AnonymousSegment`](crate::AnonymousSegment) is populated by other processes then.
#[derive(Debug)]
pub struct PrivateMemory {
    start: NonNull<u8>,
    bytes: NonZero<usize>,
    fork_guard: ForkGuard,
}

// SAFETY: the memory is that of this object alone.
unsafe impl Send for PrivateMemory {}
// SAFETY: a shared reference gives the address only.
unsafe impl Sync for PrivateMemory {}

impl PrivateMemory {
    /// Maps and populates `bytes` of zeros, rounded up to whole pages of 2 MiB, by threads on
    /// `cores`. The calling thread is one of them.
    ///
    /// # Errors
    /// [`Error::Invalid`] for 0 bytes, [`Error::NoSpace`] before any page is allocated, and
    /// [`Error::Os`]. Nothing stays mapped.
    pub fn new(bytes: usize, cores: &Cores) -> Result<PrivateMemory> {
        let invalid = || Error::Invalid { what: format!("invalid size {bytes}: expected 1 byte to 8 EiB") };
        let rounded = bytes.checked_next_multiple_of(PART).filter(|&bytes| isize::try_from(bytes).is_ok());
        let bytes = rounded.and_then(NonZero::new).ok_or_else(invalid)?;
        space::check_address_space(bytes.get() as u64 + PART as u64)?;
        space::check_ordinary(bytes.get() as u64)?;
        let doing = || format!("mapping {}", Bytes(bytes.get() as u64));
        let start = map_aligned(bytes.get()).map_err(Error::os(doing()))?;
        let memory = PrivateMemory { start, bytes, fork_guard: ForkGuard::current() };
        // If the kernel rejects one of them, there are small pages, copies in children, or larger
        // core files.
        for advice in [libc::MADV_HUGEPAGE, libc::MADV_DONTFORK, libc::MADV_DONTDUMP] {
            let _ = memory.advise(0, bytes.get(), advice);
        }
        memory.populate(cores).map_err(Error::os(format!("populating {}", Bytes(bytes.get() as u64))))?;
        Ok(memory)
    }

    /// Returns the first byte. All bytes are readable and writable while the object exists.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the number of bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "it has at least one byte")]
    pub fn len(&self) -> usize {
        self.bytes.get()
    }

    fn advise(&self, from: usize, bytes: usize, advice: i32) -> io::Result<()> {
        // SAFETY: within the mapping of this object, whose content stays.
        let answer = unsafe { libc::madvise(self.start.as_ptr().add(from).cast(), bytes, advice) };
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn populate(&self, cores: &Cores) -> io::Result<()> {
        let (next, failure) = (AtomicUsize::new(0), AtomicI32::new(0));
        let work = || {
            while failure.load(Ordering::Relaxed) == 0 {
                let from = next.fetch_add(PART, Ordering::Relaxed);
                if from >= self.len() {
                    return;
                }
                if let Err(error) = self.populate_part(from) {
                    failure.store(error.raw_os_error().unwrap_or(libc::EIO), Ordering::Relaxed);
                }
            }
        };
        // A new thread changes mappings for its stack, and would wait for the threads that are
        // already allocating pages.
        let (here, begun) = mpsc::channel();
        let gate = &RwLock::new(());
        std::thread::scope(|scope| {
            let closed = gate.write();
            let other = |_| {
                let here = here.clone();
                let work = move || {
                    let _ = here.send(());
                    drop(gate.read());
                    work();
                };
                // If a thread cannot be started, the others do its part.
                std::thread::Builder::new().spawn_scoped(scope, work).is_ok()
            };
            let others = cores.threads().min(self.len() / PART).saturating_sub(1);
            let started = (0..others).map(other).filter(|&is_started| is_started).count();
            begun.iter().take(started).for_each(drop);
            drop(closed);
            work();
        });
        match failure.into_inner() {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    fn populate_part(&self, from: usize) -> io::Result<()> {
        match self.advise(from, PART, libc::MADV_POPULATE_WRITE) {
            // A kernel before 5.14.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                for at in (from..from + PART).step_by(hostbuf_os::memory::page_size() as usize) {
                    // SAFETY: within the mapping, of which no other thread has this part.
                    unsafe { self.start.as_ptr().add(at).write_volatile(0) };
                }
                Ok(())
            }
            result => result,
        }
    }
}

/// Maps `bytes` at a multiple of a huge page.
fn map_aligned(bytes: usize) -> io::Result<NonNull<u8>> {
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping.
    let mapped = unsafe { libc::mmap(null_mut(), bytes + PART, access, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let before = mapped.addr().next_multiple_of(PART) - mapped.addr();
    // SAFETY: within the new mapping.
    let start = unsafe { mapped.byte_add(before) };
    for (from, length) in [(mapped, before), (start.wrapping_byte_add(bytes), PART - before)] {
        if length > 0 {
            // SAFETY: the parts of the new mapping before and behind the memory.
            unsafe { libc::munmap(from, length) };
        }
    }
    Ok(NonNull::new(start.cast()).expect("the kernel maps nothing at the null address"))
}

impl Drop for PrivateMemory {
    fn drop(&mut self) {
        if !self.fork_guard.is_current() {
            // The child may have mapped something else there.
            return;
        }
        // SAFETY: mapped by this object, which ends.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_writable_and_aligned() {
        for bytes in [1, PART, 5 * PART + 1] {
            let memory = PrivateMemory::new(bytes, &Cores::own()).unwrap();
            assert_eq!(memory.len(), bytes.next_multiple_of(PART));
            assert!(memory.start().as_ptr().addr().is_multiple_of(PART));
            // SAFETY: nobody else has the memory.
            let content = unsafe { std::slice::from_raw_parts_mut(memory.start().as_ptr(), memory.len()) };
            assert!(content.iter().all(|&byte| byte == 0));
            content.fill(1);
        }
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for bytes in [0, usize::MAX, isize::MAX as usize] {
            let error = PrivateMemory::new(bytes, &Cores::own()).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. } | Error::NoSpace(_)), "{error}");
        }
        let error = PrivateMemory::new(1 << 50, &Cores::own()).unwrap_err();
        assert!(matches!(error, Error::NoSpace(_)), "{error}");
    }
}
