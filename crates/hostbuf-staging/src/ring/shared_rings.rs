//! The rings that all parts of a process share: one for the host, and one for each GPU.

use std::sync::{Arc, Mutex, Weak};

use hostbuf_os::forking::hold_around_fork;
use hostbuf_os::poison::IgnorePoison;
use hostbuf_os::process_lock::ProcessLock;

use super::host_memory::HostMemory;
use super::ring_error::RingError;
use super::ring_options::RingOptions;
use super::staging_ring::Ring;
use crate::device::{CopyDevice, HostDevice};

/// A ring, by the number of its device. It ends with its last user.
struct RingOfDevice<D: CopyDevice> {
    device: u32,
    ring: Weak<Ring<D>>,
}

type SharedRings<D> = Vec<RingOfDevice<D>>;

static HOST_RINGS: Mutex<SharedRings<HostDevice>> = Mutex::new(Vec::new());
#[cfg(feature = "cuda")]
static GPU_RINGS: Mutex<SharedRings<crate::CudaDevice>> = Mutex::new(Vec::new());
/// The lock of a thread that makes a ring, which takes too long for a fork to wait.
static MAKING: ProcessLock = ProcessLock::new();

impl Ring<HostDevice> {
    /// Returns the ring that all parts of this process share for transfers between files and host
    /// memory. The first call makes it, with the default options; it ends with its last user.
    ///
    /// # Errors
    /// [`RingError::NoMemory`] and [`RingError::Threads`].
    pub fn of_host() -> Result<Arc<Ring<HostDevice>>, RingError> {
        hold_around_fork!(HOST_RINGS: SharedRings<HostDevice>);
        shared(&HOST_RINGS, 0, || Ring::for_host(RingOptions::new()))
    }

    /// Makes a ring for transfers between files and host memory.
    ///
    /// # Errors
    /// [`RingError::Invalid`], [`RingError::NoMemory`] and [`RingError::Threads`].
    pub fn for_host(options: RingOptions) -> Result<Ring<HostDevice>, RingError> {
        let bytes = options.bytes()?;
        let memory = HostMemory::try_new(bytes).ok_or(RingError::NoMemory { bytes })?;
        Ring::new(HostDevice::new(), options, memory)
    }
}

#[cfg(feature = "cuda")]
mod of_gpu {
    use hostbuf_cuda::{CudaContext, CudaGpu};
    use hostbuf_register::{CudaHost, RegistrationCache};

    use super::*;
    use crate::device::{CudaDevice, DeviceError};
    use crate::ring::BorrowedMemory;

    impl Ring<CudaDevice> {
        /// Returns the ring that all parts of this process share for a GPU. The first call makes
        /// it by [`for_gpu`](Ring::for_gpu), with the default options; it ends with its last user.
        ///
        /// # Errors
        /// [`RingError`] of the driver, of the registration of the memory, and of threads.
        pub fn of_gpu(gpu: &CudaGpu) -> Result<Arc<Ring<CudaDevice>>, RingError> {
            hold_around_fork!(GPU_RINGS: SharedRings<CudaDevice>);
            shared(&GPU_RINGS, gpu.ordinal(), || Ring::for_gpu(gpu, RingOptions::new()))
        }

        /// Makes a ring for a GPU, in memory of its own that is registered with CUDA. No cache
        /// counts these [bytes](RingOptions::bytes).
        ///
        /// # Errors
        /// As [`of_gpu`](Ring::of_gpu), and [`RingError::Invalid`].
        pub fn for_gpu(gpu: &CudaGpu, options: RingOptions) -> Result<Ring<CudaDevice>, RingError> {
            ring_of_gpu(gpu, options, |bytes| {
                let registrar = Arc::new(CudaHost::new(gpu.ordinal())?);
                BorrowedMemory::registered(&registrar, bytes)
            })
        }

        /// Makes a ring for a GPU, in memory of its own that `cache` registers with CUDA. The
        /// [bytes](RingOptions::bytes) of the ring count against the budget of the cache until the
        /// ring ends.
        ///
        /// # Errors
        /// As [`for_gpu`](Ring::for_gpu), and [`RingError::Register`] if the budget has no room.
        pub fn for_gpu_with_cache(
            gpu: &CudaGpu,
            options: RingOptions,
            cache: &Arc<RegistrationCache<CudaHost>>,
        ) -> Result<Ring<CudaDevice>, RingError> {
            ring_of_gpu(gpu, options, |bytes| BorrowedMemory::leased(cache, bytes))
        }
    }
    /// Makes a ring for a GPU in memory of `register`.
    fn ring_of_gpu(
        gpu: &CudaGpu,
        options: RingOptions,
        register: impl FnOnce(usize) -> Result<BorrowedMemory, hostbuf_register::Error>,
    ) -> Result<Ring<CudaDevice>, RingError> {
        let bytes = options.bytes()?;
        let context = CudaContext::retain(gpu).map_err(|error| {
            DeviceError::refused(format!("GPU {}", gpu.ordinal()), "retaining the context", error)
        })?;
        let memory = register(bytes)?;
        Ring::new(CudaDevice::new(&context)?, options, memory)
    }
}

/// Returns the ring of a device, which `make` makes if there is none.
fn shared<D: CopyDevice>(
    rings: &Mutex<SharedRings<D>>,
    device: u32,
    make: impl FnOnce() -> Result<Ring<D>, RingError>,
) -> Result<Arc<Ring<D>>, RingError> {
    if let Some(known) = known(rings, device) {
        return Ok(known);
    }
    let _making = MAKING.lock();
    if let Some(known) = known(rings, device) {
        return Ok(known);
    }
    let ring = Arc::new(make()?);
    let mut rings = rings.lock().ignore_poison();
    rings.retain(|one| one.device != device && one.ring.strong_count() > 0);
    rings.push(RingOfDevice { device, ring: Arc::downgrade(&ring) });
    Ok(ring)
}

/// Returns the ring of a device, unless there is none, it is the parent's, or it has ended.
fn known<D: CopyDevice>(rings: &Mutex<SharedRings<D>>, device: u32) -> Option<Arc<Ring<D>>> {
    let found = {
        let rings = rings.lock().ignore_poison();
        rings.iter().find(|one| one.device == device).and_then(|one| one.ring.upgrade())
    };
    // A ring is dropped without the lock, since its end waits for its device.
    found.filter(|ring| ring.is_usable())
}
