//! Transfers in the order of a stream.

use std::sync::Arc;
use std::time::Duration;

use super::held_transfers::EndedCopies;
use super::staging_ring::Ring;
use crate::device::{BeginTransfer, CopyDirection, DeviceError, DeviceTarget, StreamDevice};
use crate::read_write_at::{ReadAt, WriteAt};
use crate::transfer::{HostSide, Transfer, TransferPart, TransferState};

/// The time after which more copies are enqueued on a stream that had no room. One copy of 8 MiB
/// takes 170 µs.
const BETWEEN_ATTEMPTS: Duration = Duration::from_micros(500);

/// The number of attempts after which the device is asked whether it is lost.
const ATTEMPTS: u32 = 1000;

impl<D: StreamDevice> Ring<D> {
    /// Starts to read as [`read`](Ring::read) does, in the order of `stream`: the transfer begins
    /// after all work that the stream has now, and all work that is enqueued on it later waits
    /// until the transfer has ended. The stream itself copies, by a kernel.
    ///
    /// This call does not wait for the transfer. The first such call for a ring reserves a slot for
    /// these transfers, and waits until one is free. The call returns once the copies of all slots
    /// are enqueued. The streams of a process have at most 200 of them in the queues of the GPU, so
    /// the call waits if there are more, and a transfer of more than 200 slots runs mostly within
    /// the call.
    ///
    /// Later work also goes on after a transfer that has failed or was cancelled, which
    /// [`wait`](Transfer::wait) returns. A stream that is being captured, and a ring of one slot,
    /// are errors of the transfer. Nothing that the transfer needs may wait for the stream: neither
    /// the source, nor other work on the device's own stream.
    pub fn read_on(
        &self,
        stream: &D::Stream,
        source: Arc<dyn ReadAt>,
        offset: u64,
        to: DeviceTarget,
    ) -> Transfer {
        self.start_on(stream, true, HostSide::Source(source), &TransferPart::new(offset, to))
    }

    /// Starts to write as [`write`](Ring::write) does, in the order of `stream`: see
    /// [`read_on`](Ring::read_on).
    pub fn write_on(
        &self,
        stream: &D::Stream,
        from: DeviceTarget,
        sink: Arc<dyn WriteAt>,
        offset: u64,
    ) -> Transfer {
        self.start_on(stream, true, HostSide::Sink(sink), &TransferPart::new(offset, from))
    }

    /// Starts to read as [`read`](Ring::read) does, after all work that `stream` has now. The
    /// stream goes on meanwhile.
    pub fn read_after(
        &self,
        stream: &D::Stream,
        source: Arc<dyn ReadAt>,
        offset: u64,
        to: DeviceTarget,
    ) -> Transfer {
        self.start_on(stream, false, HostSide::Source(source), &TransferPart::new(offset, to))
    }

    /// Starts to write as [`write`](Ring::write) does, after all work that `stream` has now. The
    /// stream goes on meanwhile.
    pub fn write_after(
        &self,
        stream: &D::Stream,
        from: DeviceTarget,
        sink: Arc<dyn WriteAt>,
        offset: u64,
    ) -> Transfer {
        self.start_on(stream, false, HostSide::Sink(sink), &TransferPart::new(offset, from))
    }

    fn start_on(
        &self,
        stream: &D::Stream,
        holds: bool,
        endpoint: HostSide,
        range: &TransferPart,
    ) -> Transfer {
        let state = self.plan(endpoint, std::slice::from_ref(range), |sizes| {
            Ok(super::staging_ring::contiguous(range, sizes))
        });
        if !state.is_over() {
            self.order(stream, holds, &state);
        }
        Transfer::new(state)
    }

    /// Orders a transfer by a stream. An error ends the transfer.
    fn order(&self, stream: &D::Stream, holds: bool, state: &Arc<TransferState>) {
        let core = self.core();
        let number = core.after_streams.add(state.clone());
        core.stop_if_over(state);
        let after_streams = core.after_streams.clone();
        let begin: BeginTransfer = Box::new(move |result| after_streams.end_work(number, result));
        let ordered = core.device.in_thread_of_program(|| match holds {
            true => self.hold(stream, (number, begin), state),
            false => core.device.begin_after(stream, begin).map(|()| core.after_streams.end_order(number)),
        });
        if let Err(error) = ordered {
            state.stop_by_device(None, error);
        }
        if state.is_over() {
            core.after_streams.remove(number);
        }
    }

    /// Enqueues the copies of transfer `number`, after the call of `begin`.
    ///
    /// # Errors
    /// The device's, and [`DeviceError`] for a ring of one slot.
    fn hold(
        &self,
        stream: &D::Stream,
        (number, begin): (u64, BeginTransfer),
        state: &Arc<TransferState>,
    ) -> Result<(), DeviceError> {
        let core = self.core();
        let direction = match &state.endpoint {
            HostSide::Source(_) => CopyDirection::ToDevice,
            HostSide::Sink(_) => CopyDirection::ToHost,
        };
        let count: usize = (0..state.plan.chunks()).map(|chunk| state.plan.copies(chunk).count()).sum();
        let count = u32::try_from(count).map_err(|_| {
            let why = format!("the transfer needs {count} copies: divide it into several");
            DeviceError::refused(core.device.name(), "ordering a transfer by a stream", why)
        })?;
        let copies = Arc::new(core.device.new_copies(stream, direction, count)?);
        core.reserve_slot()?;
        let (_order, counted) = core.held.begin(state);
        state.copy_in_stream(copies.clone());
        state.end_with(Box::new(EndedCopies::new(copies.clone(), counted)));
        core.device.begin_after(stream, begin)?;
        // The transfer begins while the rest of its copies is enqueued.
        core.after_streams.end_order(number);
        for attempt in 1_u32.. {
            if core.device.enqueue_copies(stream, &copies)? {
                break;
            }
            core.signal.wait_at_most(core.signal.epoch(), BETWEEN_ATTEMPTS);
            if attempt.is_multiple_of(ATTEMPTS) {
                core.ask_whether_lost()?;
            }
        }
        let signal = core.signal.clone();
        core.device.enqueue_end(stream, &copies, Box::new(move || signal.notify()))
    }
}
