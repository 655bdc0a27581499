//! Transfers in the order of a stream.

use std::sync::Arc;

use super::staging_ring::Ring;
use crate::device::{DeviceTarget, StreamDevice};
use crate::read_write_at::{ReadAt, WriteAt};
use crate::transfer::{HostSide, Transfer, TransferError, TransferPart, TransferState};

impl<D: StreamDevice> Ring<D> {
    /// Starts to read as [`read`](Ring::read) does, in the order of `stream`: the transfer begins
    /// after all work that the stream has now, and all work that it is given later waits until the
    /// transfer has ended. This call does not wait.
    ///
    /// Later work also goes on after a transfer that has failed or was cancelled, which
    /// [`wait`](Transfer::wait) returns. A stream that is being captured is an error of the
    /// transfer. Nothing that the transfer needs may wait for the stream: neither the source, nor
    /// other work on the device's own stream.
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
        let begin = move |result| after_streams.end_work(number, result);
        let ordered = core.device.begin_after(stream, Box::new(begin)).and_then(|()| match holds {
            true => core.device.hold(stream).map(|hold| state.end_with(Box::new(hold))),
            false => Ok(()),
        });
        if let Err(source) = ordered {
            let address = state.plan.part(0, 0, 0).map_or(0, |part| part.address);
            state.stop(TransferError::Device { address, source, landed: 0 });
        }
        if state.is_over() {
            core.after_streams.remove(number);
        }
    }
}
