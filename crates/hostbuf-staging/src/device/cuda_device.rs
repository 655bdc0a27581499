//! A GPU by the CUDA driver.

#![allow(unsafe_code, reason = "passes the promises of a ring on to the driver")]

use hostbuf_cuda::{
    BatchedCopy, CopyBatch, CudaContext, CudaError, CudaEvent, CudaStream, DeviceMemory, DeviceSpan,
    PitchedCopy, RelaxedCapture,
};

use super::copy_device::CopyDevice;
use super::copy_direction::CopyDirection;
use super::device_buffer::DeviceBuffer;
use super::device_copy::DeviceCopy;
use super::device_error::DeviceError;
use super::device_rows::DeviceRows;

/// A GPU, with the stream on which it copies.
#[derive(Debug)]
pub struct CudaDevice {
    stream: CudaStream,
    /// `None` for a driver that starts one copy by each call.
    batch: Option<CopyBatch>,
}

impl CudaDevice {
    /// Makes a device with a stream of its own in a context, for a ring or another long use.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &CudaContext) -> Result<CudaDevice, DeviceError> {
        CudaDevice::with_stream(context, CudaStream::new(context))
    }

    /// Makes a device with the [stream of the calling thread](CudaStream::of_thread), for copies
    /// that the thread waits for. A thread that copies often makes one stream only.
    ///
    /// # Errors
    /// The driver's.
    pub fn of_thread(context: &CudaContext) -> Result<CudaDevice, DeviceError> {
        CudaDevice::with_stream(context, CudaStream::of_thread(context))
    }

    fn with_stream(
        context: &CudaContext,
        stream: Result<CudaStream, CudaError>,
    ) -> Result<CudaDevice, DeviceError> {
        stream.map(|stream| CudaDevice { stream, batch: CopyBatch::find(context.driver()) }).map_err(
            |error| {
                let device = format!("GPU {}", context.gpu().ordinal());
                DeviceError::refused(device, "making a stream", error)
            },
        )
    }

    /// Returns the stream.
    #[must_use]
    pub fn stream(&self) -> &CudaStream {
        &self.stream
    }

    /// Makes an error of a driver's. A context that has ended, or that an illegal access has
    /// broken, is a lost device.
    pub(super) fn error(name: String, doing: &str, error: CudaError) -> DeviceError {
        let is_lost = error.code().is_some_and(|code| code.is_context_gone() || code.is_context_broken());
        let error = DeviceError::refused(name, doing, error).started();
        if is_lost { error.lost() } else { error }
    }

    /// Starts copies, by as few calls of the driver as it allows.
    ///
    /// # Safety
    /// As for [`CopyDevice::copy_to_device`], and for a copy to the host with the sides exchanged.
    unsafe fn start(&self, direction: CopyDirection, copies: &[DeviceCopy]) -> Result<(), CudaError> {
        match self.batch {
            Some(batch) if copies.len() > 1 => {
                let copies = copies.iter().map(|copy| direction.batched(copy));
                // SAFETY: the caller guarantees both sides.
                unsafe { batch.start(&self.stream, copies) }
            }
            // SAFETY: the caller guarantees both sides.
            _ => copies.iter().try_for_each(|copy| unsafe { direction.start(&self.stream, copy) }),
        }
    }

    /// Starts copies of rows: by one call of the driver, or row by row if it does not support the
    /// distance of the rows.
    ///
    /// # Safety
    /// As for [`CopyDevice::copy_rows_to_device`].
    unsafe fn start_rows(&self, rows: &DeviceRows) -> Result<(), CudaError> {
        let &DeviceRows { host, host_pitch, address, pitch, width, height } = rows;
        let is_supported = |pitch| (width..=PitchedCopy::LARGEST_PITCH).contains(&pitch);
        if !is_supported(host_pitch) || !is_supported(pitch) {
            let copies: Vec<DeviceCopy> = rows.copies().collect();
            // SAFETY: the caller guarantees both sides of each row.
            return unsafe { self.start(CopyDirection::ToDevice, &copies) };
        }
        let extent = |pitch: usize| height.saturating_sub(1).saturating_mul(pitch).saturating_add(width);
        let from = std::ptr::slice_from_raw_parts(host.cast_const(), extent(host_pitch));
        let to = DeviceSpan::new(address, extent(pitch));
        let copy = PitchedCopy { from, from_pitch: host_pitch, to, to_pitch: pitch, width, height };
        // SAFETY: the caller guarantees both sides.
        unsafe { self.stream.copy_rows_to_device(&copy) }
    }

    /// Records `done` after the copies that were `started`.
    fn record(
        &self,
        direction: CopyDirection,
        started: Result<(), CudaError>,
        done: &CudaEvent,
    ) -> Result<(), DeviceError> {
        if let Err(error) = done.record(&self.stream) {
            // Nothing reports when the copies end.
            return Err(CudaDevice::error(self.name(), "recording the end of a copy", error).lost());
        }
        started.map_err(|error| CudaDevice::error(self.name(), direction.doing(), error))
    }
}

impl CopyDirection {
    fn doing(self) -> &'static str {
        match self {
            CopyDirection::ToDevice => "starting a copy to the device",
            CopyDirection::ToHost => "starting a copy to the host",
        }
    }

    pub(super) fn batched(self, &DeviceCopy { host, bytes, address }: &DeviceCopy) -> BatchedCopy {
        match self {
            CopyDirection::ToDevice => BatchedCopy { to: address, from: host as u64, bytes },
            CopyDirection::ToHost => BatchedCopy { to: host as u64, from: address, bytes },
        }
    }

    /// Starts one copy.
    ///
    /// # Safety
    /// As for [`CudaDevice::start`].
    unsafe fn start(self, stream: &CudaStream, copy: &DeviceCopy) -> Result<(), CudaError> {
        let &DeviceCopy { host, bytes, address } = copy;
        match self {
            // SAFETY: the caller guarantees both sides.
            CopyDirection::ToDevice => unsafe {
                stream.copy_to_device(std::ptr::slice_from_raw_parts(host, bytes), address)
            },
            // SAFETY: the caller guarantees both sides.
            CopyDirection::ToHost => unsafe {
                let to = std::ptr::slice_from_raw_parts_mut(host, bytes);
                stream.copy_to_host(DeviceSpan::new(address, bytes), to)
            },
        }
    }
}

impl CopyDevice for CudaDevice {
    type Event = CudaEvent;

    fn name(&self) -> String {
        format!("GPU {}", self.stream.context().gpu().ordinal())
    }

    fn new_event(&self) -> Result<CudaEvent, DeviceError> {
        CudaEvent::new(self.stream.context())
            .map_err(|error| CudaDevice::error(self.name(), "making an event", error))
    }

    unsafe fn copy_to_device(&self, copies: &[DeviceCopy], done: &CudaEvent) -> Result<(), DeviceError> {
        // SAFETY: the caller guarantees both sides.
        let started = unsafe { self.start(CopyDirection::ToDevice, copies) };
        self.record(CopyDirection::ToDevice, started, done)
    }

    unsafe fn copy_rows_to_device(&self, rows: &[DeviceRows], done: &CudaEvent) -> Result<(), DeviceError> {
        // SAFETY: the caller guarantees both sides.
        let started = rows.iter().try_for_each(|rows| unsafe { self.start_rows(rows) });
        self.record(CopyDirection::ToDevice, started, done)
    }

    unsafe fn copy_to_host(&self, copies: &[DeviceCopy], done: &CudaEvent) -> Result<(), DeviceError> {
        // SAFETY: the caller guarantees both sides.
        let started = unsafe { self.start(CopyDirection::ToHost, copies) };
        self.record(CopyDirection::ToHost, started, done)
    }

    fn in_thread_of_program<R>(&self, copy: impl FnOnce() -> R) -> R {
        // The program may capture a stream of its own in this thread.
        let _relaxed = RelaxedCapture::begin(self.stream.context().driver());
        copy()
    }

    fn is_complete(&self, event: &CudaEvent) -> Result<bool, DeviceError> {
        event.is_complete().map_err(|error| CudaDevice::error(self.name(), "copying", error))
    }

    fn wait(&self, event: &CudaEvent) -> Result<(), DeviceError> {
        event.synchronize().map_err(|error| CudaDevice::error(self.name(), "copying", error))
    }
}

// SAFETY: the memory stays at its address until it is dropped.
unsafe impl DeviceBuffer for DeviceMemory {
    fn address(&self) -> u64 {
        DeviceMemory::address(self)
    }

    fn bytes(&self) -> u64 {
        self.span().bytes() as u64
    }
}
