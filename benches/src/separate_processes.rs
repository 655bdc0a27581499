//! Processes that share nothing, one on each core. They allocate private memory and write to it,
//! which shows what the memory of the host can take.

#![allow(unsafe_code, reason = "forks processes that allocate private memory")]

use std::io::{self, Read, Write};
use std::num::NonZeroUsize;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use hostbuf::Pages;
use hostbuf_os::cores::Cores;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use crate::fixture::BenchResult;
use crate::sample::timed;

/// The children of this process, one on each core, and the stream to each.
pub(crate) struct SeparateProcesses(Vec<(Pid, UnixStream)>);

impl SeparateProcesses {
    /// Starts the processes, each with its part of `bytes` bytes: address space without pages.
    pub(crate) fn start(
        cores: Cores,
        bytes: usize,
        pages: Pages,
    ) -> Result<SeparateProcesses, Box<dyn std::error::Error>> {
        let part = NonZeroUsize::new(bytes / cores.count()).ok_or("too few bytes")?;
        let mut processes = Vec::new();
        for core in cores.spread(cores.count()) {
            let (parent_end, child_end) = UnixStream::pair()?;
            // SAFETY: this process has one thread.
            if let ForkResult::Parent { child } = unsafe { fork() }? {
                processes.push((child, parent_end));
                continue;
            }
            drop(parent_end);
            let worked = core.apply().and_then(|()| allocate_and_write(child_end, part, pages));
            // SAFETY: _exit runs no exit handler of the parent.
            unsafe { libc::_exit(i32::from(worked.is_err())) }
        }
        let mut started = SeparateProcesses(processes);
        // All are on their cores.
        started.await_all()?;
        Ok(started)
    }

    /// Has all processes take their next step (the first allocates all pages, the second writes to
    /// them), and returns the time until the last is done.
    pub(crate) fn step(&mut self) -> io::Result<Duration> {
        let (took, done) = timed(|| {
            for (_, stream) in &mut self.0 {
                stream.write_all(&[0])?;
            }
            self.await_all()
        });
        done.map(|()| took)
    }

    /// Waits for the processes to end.
    pub(crate) fn end(self) -> BenchResult {
        for (pid, stream) in self.0 {
            drop(stream);
            if !matches!(waitpid(pid, None)?, WaitStatus::Exited(_, 0)) {
                return Err("a process could not allocate its part".into());
            }
        }
        Ok(())
    }

    fn await_all(&mut self) -> io::Result<()> {
        self.0.iter_mut().try_for_each(|(_, stream)| stream.read_exact(&mut [0]))
    }
}

/// Takes the steps of [`SeparateProcesses::step`] when the parent says so.
fn allocate_and_write(mut parent: UnixStream, part: NonZeroUsize, pages: Pages) -> io::Result<()> {
    let advice = if pages == Pages::Small { MmapAdvise::MADV_NOHUGEPAGE } else { MmapAdvise::MADV_HUGEPAGE };
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: new private memory, which nothing refers to.
    let at = unsafe { mmap_anonymous(None, part, access, MapFlags::MAP_PRIVATE) }?;
    // SAFETY: the memory of above.
    unsafe { madvise(at, part.get(), advice) }?;
    let mut await_step = || parent.write_all(&[0]).and_then(|()| parent.read_exact(&mut [0]));
    await_step()?;
    // SAFETY: the memory of above.
    unsafe { madvise(at, part.get(), MmapAdvise::MADV_POPULATE_WRITE) }?;
    await_step()?;
    // SAFETY: the memory of above, which is writable and `part` bytes long.
    unsafe { at.cast::<u8>().as_ptr().write_bytes(1, part.get()) };
    parent.write_all(&[0])
}
