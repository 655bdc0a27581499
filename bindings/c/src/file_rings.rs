//! The rings of the transfers of a file.

#![allow(unsafe_code, reason = "a stream is a handle of the caller")]

use std::ffi::c_void;
use std::sync::{Arc, OnceLock};

use hostbuf_cuda::Driver;
use hostbuf_staging::{CopyDevice, CudaDevice, DeviceTarget, File, HostDevice, Ring, RingError, Transfer};
use library::Error;

use crate::gpu_stream::borrowed;
use crate::pool_status::cuda_error;
use crate::status::{CallError, CallResult, argument, hostbuf_status as S};
use crate::transfer::hostbuf_transfer;

/// The direction of a transfer.
#[derive(Clone, Copy)]
pub(crate) enum RingDirection {
    Read,
    Write,
}

impl RingDirection {
    fn start<D: CopyDevice>(
        self,
        ring: Arc<Ring<D>>,
        file: &File,
        target: DeviceTarget,
        offset: u64,
    ) -> hostbuf_transfer {
        let transfer: Transfer = match self {
            RingDirection::Read => file.pread(&ring, target, offset),
            RingDirection::Write => file.pwrite(&ring, target, offset),
        };
        hostbuf_transfer::new(transfer, ring)
    }
}

/// The rings of the transfers of a file. The file keeps those that it has used first, so that they
/// do not end between two transfers.
#[derive(Default)]
pub(crate) struct FileRings {
    host: OnceLock<Arc<Ring<HostDevice>>>,
    gpu: OnceLock<(u32, Arc<Ring<CudaDevice>>)>,
}

impl FileRings {
    /// Starts a transfer to or from memory of the host.
    pub(crate) fn start_on_host(
        &self,
        file: &File,
        direction: RingDirection,
        target: DeviceTarget,
        offset: u64,
    ) -> CallResult<hostbuf_transfer> {
        let ring = match self.host.get().filter(|ring| ring.is_usable()) {
            Some(ring) => ring.clone(),
            None => Ring::of_host().map_err(ring_error)?,
        };
        // A ring that is kept already stays, though a forked child uses another one.
        let _ = self.host.set(ring.clone());
        Ok(direction.start(ring, file, target, offset))
    }

    /// Starts a transfer to or from memory of a GPU, after the work that a stream has now. If
    /// `holds`, later work of the stream waits for it.
    ///
    /// # Safety
    /// `stream` is null or a stream of the GPU.
    pub(crate) unsafe fn start_on_gpu(
        &self,
        file: &File,
        direction: RingDirection,
        target: DeviceTarget,
        offset: u64,
        (gpu, stream, holds): (u32, *mut c_void, bool),
    ) -> CallResult<hostbuf_transfer> {
        let known = self.gpu.get().filter(|(number, ring)| *number == gpu && ring.is_usable());
        let ring = match known {
            Some((_, ring)) => ring.clone(),
            None => {
                let gpu = Driver::find().and_then(|driver| driver.gpu(gpu)).map_err(cuda_error)?;
                Ring::of_gpu(&gpu).map_err(ring_error)?
            }
        };
        let _ = self.gpu.set((gpu, ring.clone()));
        let own = ring.device().stream();
        // SAFETY: by the contract of this function.
        let theirs = unsafe { borrowed(own.context(), stream) }?;
        if holds && theirs.is_capturing().map_err(cuda_error)? {
            let what = "a transfer in the order of a stream that is being captured".into();
            let why =
                "a graph cannot contain it: start it before the capture begins, or after it has ended".into();
            return Err(Error::Unsupported { what, why }.into());
        }
        if !holds && ring.try_wait_for(&theirs).map_err(cuda_error)? {
            return Ok(direction.start(ring, file, target, offset));
        }
        let transfer = match (direction, holds) {
            (RingDirection::Read, true) => file.pread_on(&ring, &theirs, target, offset),
            (RingDirection::Write, true) => file.pwrite_on(&ring, &theirs, target, offset),
            (RingDirection::Read, false) => file.pread_after(&ring, &theirs, target, offset),
            (RingDirection::Write, false) => file.pwrite_after(&ring, &theirs, target, offset),
        };
        drop(theirs);
        Ok(hostbuf_transfer::new(transfer, ring))
    }
}

fn ring_error(error: RingError) -> CallError {
    let message = error.to_string();
    match error {
        RingError::Threads(source) => {
            Error::Os { doing: "starting the threads of a ring".into(), source }.into()
        }
        RingError::NoMemory { .. } => CallError::Status(S::HOSTBUF_NO_SPACE, message),
        RingError::Register(error) => error.into(),
        RingError::Device(_) => CallError::Status(S::HOSTBUF_UNSUPPORTED, message),
        _ => argument(message),
    }
}
