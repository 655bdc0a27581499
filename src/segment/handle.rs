//! The handle that users hold.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::ThreadId;

use crate::error::{Error, Result};
use crate::segment::control::Control;
use crate::segment::fill_state::Fill;
use crate::segment::identity::{BufferIdentity, Identity, Phase};
use hostbuf_memory::Pages;
use hostbuf_os::raw;
use hostbuf_protocol::wire::{ENV_LOCAL_SIZE, Winner};
use hostbuf_register::Span;
use hostbuf_register::own_ranges::{self, OwnRange};

/// A buffer of this host, mapped in this process at the address that all ranks of all hosts agreed on.
///
/// Clones mean the same buffer. A buffer that [`allocate`](HostBuffer::allocate) made is unmapped with the last
/// handle of the process, and its memory is free again with the last process; one that the launcher made stays
/// mapped until the process ends.
///
/// hostbuf gives no consistency guarantees for what ranks write: who writes while others read must synchronise by
/// other means. The usual life of a buffer is [`initialize`](HostBuffer::initialize),
/// [`replicate`](HostBuffer::replicate), [`freeze`](HostBuffer::freeze), and then reading.
#[derive(Clone, Debug)]
pub struct HostBuffer {
    pub(crate) job: Arc<Job>,
    pub(crate) index: usize,
}

/// What one process knows of a job's buffers.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) identity: Identity,
    pub(crate) control: Control,
    pub(crate) control_fd: OwnedFd,
    pub(crate) fds: Vec<OwnedFd>,
    /// Which thread of this process fills which buffer: the kernel's lock tells processes apart, not threads.
    pub(crate) filling: Mutex<BTreeMap<usize, ThreadId>>,
    /// The buffers as memory that caches need not watch.
    own: OnceLock<Vec<OwnRange>>,
    /// Unmaps when the last handle goes; a launcher's buffers stay.
    pub(crate) mapping: Option<Mapping>,
}

impl Job {
    /// How many ranks a launcher has started on this host; 1 when this job is not a launcher's, or it does not say.
    pub(crate) fn launched_ranks(&self) -> usize {
        let said = || std::env::var(ENV_LOCAL_SIZE).ok()?.parse().ok();
        if self.mapping.is_some() { 1 } else { said().unwrap_or(1) }
    }
}

/// The agreed range, as this process mapped it.
#[derive(Debug)]
pub(crate) struct Mapping {
    address: usize,
    length: usize,
    /// Where the control page is, from the address, and its length.
    control: (usize, usize),
}

impl Mapping {
    /// # Safety
    /// The range must be wholly this process's, mapped for a job, and unmapped by nobody else.
    pub(crate) unsafe fn of(winner: &Winner) -> Mapping {
        Mapping {
            address: winner.address as usize,
            length: winner.length as usize,
            control: (winner.control as usize, winner.control_length as usize),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (control, behind) = (self.address + self.control.0, self.control.0 + self.control.1);
        // SAFETY: by the contract of of(); handles borrow from the job that owns this, so no reference is left to the
        // buffers. A copy of an arena's handle may be: it finds a blank control page, and an error.
        unsafe {
            let blanked = raw::blank(control, self.control.1);
            raw::unmap(self.address, self.control.0);
            raw::unmap(self.address + behind, self.length - behind);
            // Without room for a blank page the range goes whole; using a stale handle is then a fault.
            if blanked.is_err() {
                raw::unmap(control, self.control.1);
            }
        }
    }
}

impl Job {
    /// Reads and checks the control page of what is mapped as `winner` says.
    ///
    /// # Safety
    /// `winner` must be mapped in this process: `mapping` unmaps it, or it stays until the process ends.
    pub(crate) unsafe fn open(
        winner: &Winner,
        mut descriptors: Vec<OwnedFd>,
        mapping: Option<Mapping>,
    ) -> Result<Arc<Job>> {
        if descriptors.len() != 1 + winner.buffers.as_slice().len() {
            return Err(Error::Attach { why: format!("{} descriptors came with it", descriptors.len()) });
        }
        // SAFETY: by this function's contract.
        let control = unsafe { Control::at((winner.address + winner.control) as usize) };
        let identity = control.identity()?;
        let fits = identity.address == winner.address
            && identity.length == winner.length
            && identity.buffers().len() == winner.buffers.as_slice().len()
            && identity
                .buffers()
                .iter()
                .zip(winner.buffers.as_slice())
                .all(|(i, p)| (i.offset, i.length) == (p.offset, p.length));
        if !fits {
            return Err(Error::Corrupt { word: "the address", found: identity.address });
        }
        let fds = descriptors.split_off(1);
        let control_fd = descriptors.remove(0);
        let job = Arc::new(Job {
            identity,
            control,
            control_fd,
            fds,
            filling: Mutex::new(BTreeMap::new()),
            own: OnceLock::new(),
            mapping,
        });
        let mut own = Vec::new();
        for buffer in identity.buffers() {
            let span = Span::new((identity.address + buffer.offset) as usize, buffer.length as usize)?;
            let keeper: Arc<dyn Send + Sync> = job.clone();
            // SAFETY: the buffers stay mapped until the job is dropped, and their pages are discarded only while a failed fill
            // is undone, when no device knows them.
            own.push(unsafe { own_ranges::declare(span, Arc::downgrade(&keeper)) });
        }
        job.own.get_or_init(|| own);
        Ok(job)
    }
}

impl HostBuffer {
    pub(crate) fn identity(&self) -> &BufferIdentity {
        &self.job.identity.buffers()[self.index]
    }

    pub(crate) fn control(&self) -> Control {
        self.job.control
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.job.fds[self.index].as_fd()
    }

    /// The first byte's address, the same in every rank of every host. Valid for reads and, until the buffer is
    /// frozen, for writes of [`len`](HostBuffer::len) bytes.
    ///
    /// # Panics
    /// Never: no buffer lies at address 0.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        let address = self.job.identity.address + self.identity().offset;
        NonNull::new(address as *mut u8).expect("no buffer lies at address 0")
    }

    /// Bytes that can be used: the size asked for, in whole pages.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a buffer has at least one byte")]
    pub fn len(&self) -> usize {
        self.identity().length as usize
    }

    /// The addresses of the bytes that `region` names.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it is empty or not inside.
    pub(crate) fn region(&self, region: impl RangeBounds<usize>) -> Result<Span> {
        let start = match region.start_bound() {
            Bound::Included(&at) => at,
            Bound::Excluded(&at) => at.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match region.end_bound() {
            Bound::Included(&at) => at.saturating_add(1),
            Bound::Excluded(&at) => at,
            Bound::Unbounded => self.len(),
        };
        if start >= end || end > self.len() {
            let (name, length) = (self.name(), self.len());
            return Err(Error::invalid(format!(
                "bytes {start}..{end} are no region of buffer {name} of {length}"
            )));
        }
        Ok(Span::new(self.as_ptr().as_ptr() as usize + start, end - start)?)
    }

    /// Its name: `default` unless another was given.
    #[must_use]
    pub fn name(&self) -> String {
        self.identity().name()
    }

    /// The pages that were really obtained on this host.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.identity().pages()
    }

    /// How many of its bytes stand on huge pages.
    #[must_use]
    pub fn huge_bytes(&self) -> u64 {
        self.identity().huge
    }

    /// Which host of the job this is, and how many there are: 0 of 0 under `hostbuf exec`, where the hosts do not
    /// know each other.
    #[must_use]
    pub fn host(&self) -> (u32, u32) {
        (self.job.identity.host, self.job.identity.hosts)
    }

    /// How long each phase took before the ranks went on.
    #[must_use]
    pub fn phases(&self) -> Vec<(Phase, std::time::Duration)> {
        let micros = |p: Phase| std::time::Duration::from_micros(self.job.identity.phases[p as usize]);
        Phase::ALL.into_iter().map(|p| (p, micros(p))).collect()
    }

    /// How far the filling is on this host.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn fill_state(&self) -> Result<Fill> {
        self.control().fill(self.index)
    }

    /// How many times filling has begun on this host: a second generation follows a filler that died.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn generation(&self) -> Result<u64> {
        self.control().generation(self.index)
    }

    /// Bytes from the beginning that the arena has given out: what [`replicate`](HostBuffer::replicate) sends.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn high_water(&self) -> Result<u64> {
        let mark = self.control().high_water(self.index)?;
        if mark > self.len() as u64 {
            return Err(Error::Corrupt { word: "the high-water mark", found: mark });
        }
        Ok(mark)
    }

    /// Whether `[pointer, pointer + bytes)` lies inside.
    #[must_use]
    pub fn contains(&self, pointer: *const u8, bytes: usize) -> bool {
        let start = self.as_ptr().as_ptr() as usize;
        (pointer as usize).checked_sub(start).is_some_and(|at| at <= self.len() && bytes <= self.len() - at)
    }
}
