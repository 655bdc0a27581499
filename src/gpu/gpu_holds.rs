//! The vote of a rank that uses GPUs on the address of the GPU sections.

use crate::error::{Error, Result};
use crate::gpu::{SECTION, driver_error};
use hostbuf_cuda::{CudaError, CudaGpu, VirtualRange};
use hostbuf_os::process;
use hostbuf_protocol::ballot::{Holds, Refusal};
use hostbuf_protocol::candidates::Ballot;
use hostbuf_protocol::message::{AddressWindow, Message, RefusedCandidate};

/// The number of free ranges that the driver may refuse before the vote fails: a driver that does
/// not grant wished addresses at all refuses them one by one.
const MAX_REFUSALS: usize = 64;

/// The ranges that this process holds for the vote in progress: reserved by the CUDA driver.
///
/// The driver may refuse a range that this process had mapped when it initialised the driver, and
/// one for which it was asked while something was mapped there, even if it is free now (seen with
/// driver 580). So a rank votes after it has initialised the driver, checks whether a candidate is
/// free before it asks, and holds candidates only through the driver.
pub struct GpuHolds {
    gpu: CudaGpu,
    /// The holds by which it finds out whether a range is free. There are none between two calls.
    free: Holds,
    ranges: Vec<VirtualRange>,
    /// The number of free ranges that the driver has refused.
    refusals: usize,
}

impl GpuHolds {
    /// Makes an empty set of holds. `gpu` is any GPU of this process.
    #[must_use]
    pub fn new(gpu: &CudaGpu) -> GpuHolds {
        let free = Holds::new(AddressWindow::Anywhere);
        GpuHolds { gpu: *gpu, free, ranges: Vec::new(), refusals: 0 }
    }

    /// Passes the reply to a question of the agent to `send`. Returns what `send` returns, or
    /// `None` if `message` is no question.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the driver cannot reserve addresses of choice.
    pub fn answer<T>(
        &mut self,
        message: &Message<'_>,
        send: impl FnOnce(&Message<'_>) -> T,
    ) -> Result<Option<T>> {
        Ok(match message {
            Message::Ballot { length, candidates } => {
                let (mask, refusal) = self.vote(candidates, *length as usize)?;
                let refusal = refusal.as_ref().map(GpuRefusal::record);
                Some(send(&Message::Votes { mask, refusal }))
            }
            Message::Search { length, from, align } => {
                let align = (*align as usize).next_power_of_two();
                let hole = self.hole(*from as usize, *length as usize, align)?;
                Some(send(&Message::Hole { address: hole.map(|hole| hole as u64) }))
            }
            _ => None,
        })
    }

    /// Gives all ranges up, then holds each candidate of `ballot` that is free, with `length`
    /// bytes. Returns the held candidates as a bit mask, and the first refusal.
    fn vote(&mut self, ballot: &Ballot, length: usize) -> Result<(u64, Option<GpuRefusal>)> {
        self.ranges.clear();
        let (free, refusal) = self.free.vote(ballot, length);
        let (mut mask, mut first) = (free, refusal.map(GpuRefusal::Occupied));
        // Nothing else runs before main, so a range that is free now stays so.
        self.free.vote(&Ballot::new(&[]), length);
        for (i, &address) in ballot.as_slice().iter().enumerate().filter(|(i, _)| free >> i & 1 == 1) {
            match self.reserve(address, length)? {
                Some(range) => self.ranges.push(range),
                None => {
                    mask &= !(1 << i);
                    first = first.or(Some(GpuRefusal::Driver(address)));
                }
            }
        }
        Ok((mask, first))
    }

    /// Returns the lowest aligned hole at or above `from` that the driver grants.
    fn hole(&mut self, mut from: usize, length: usize, align: usize) -> Result<Option<usize>> {
        self.ranges.clear();
        loop {
            let Some(hole) = self.free.hole(from, length, align) else { return Ok(None) };
            if self.reserve(hole, length)?.is_some() {
                return Ok(Some(hole));
            }
            from = hole.saturating_add(length.next_multiple_of(align));
        }
    }

    /// Reserves a range that is free, or returns `None` if the driver does not grant it.
    fn reserve(&mut self, address: usize, length: usize) -> Result<Option<VirtualRange>> {
        match VirtualRange::reserve(&self.gpu, length, Some(address as u64)) {
            Ok(range) => Ok(Some(range)),
            Err(error @ CudaError::Invalid { .. }) if self.refusals < MAX_REFUSALS => {
                tracing::info!(%error, "the driver refuses a candidate for the GPU sections");
                self.refusals += 1;
                Ok(None)
            }
            Err(CudaError::Invalid { .. }) => Err(Error::Unsupported {
                what: SECTION.into(),
                why: format!(
                    "the driver on {} has refused more than {MAX_REFUSALS} free addresses, most recently {address:#x}: use another \
                     driver, or leave out gpu=",
                    process::host_name()
                ),
            }),
            Err(error) => Err(driver_error(&error)),
        }
    }

    /// Returns the range that all ranks have agreed on, and gives the others up.
    ///
    /// # Errors
    /// [`Error::Invalid`] if this process does not hold it.
    pub fn keep(mut self, address: u64) -> Result<VirtualRange> {
        let kept = self.ranges.iter().position(|range| range.address() == address);
        kept.map(|index| self.ranges.swap_remove(index)).ok_or_else(|| {
            Error::invalid(format!(
                "the agent chose {address:#x} for the GPU sections, and this rank does not hold that address (a defect in hostbuf)"
            ))
        })
    }

    /// Reserves a range on which the ranks of a running job have agreed before.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if this process has something else there.
    pub fn take(mut self, address: u64, length: usize) -> Result<VirtualRange> {
        let (mask, refusal) = self.vote(&Ballot::new(&[address as usize]), length)?;
        if mask == 1 {
            return self.keep(address);
        }
        let why = match refusal {
            Some(refusal) => {
                let RefusedCandidate { address, errno, mapping: (start, end), path } = refusal.record();
                let mapping = (start as usize, end as usize);
                crate::agree::reason(
                    std::process::id() as i32,
                    address as usize,
                    length,
                    errno as i32,
                    mapping,
                    path,
                )
            }
            None => format!("the range at {address:#x} is not free"),
        };
        Err(Error::Unsupported {
            what: SECTION.into(),
            why: format!(
                "{why}. The ranks agreed on this address before the program started: run the program as a job of its own"
            ),
        })
    }
}

/// The reason why a candidate could not be held.
enum GpuRefusal {
    /// Something is mapped there.
    Occupied(Refusal),
    /// The driver does not grant this address.
    Driver(usize),
}

impl GpuRefusal {
    /// Returns the refusal as a message contains it.
    fn record(&self) -> RefusedCandidate<'_> {
        match self {
            GpuRefusal::Occupied(refusal) => refusal.record(),
            GpuRefusal::Driver(address) => RefusedCandidate {
                address: *address as u64,
                errno: libc::EADDRNOTAVAIL as u64,
                mapping: (0, 0),
                path: b"",
            },
        }
    }
}
