//! A stream that waits until a test lets it go on.

#![allow(unsafe_code, reason = "lets a stream wait for a word by a foreign function")]

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::sys;
use hostbuf_cuda::PageLockedMemory;
use hostbuf_staging::{CudaDevice, Ring};

use super::copies::ok;

/// The hold on the stream of a ring: copies that the ring starts later wait until this is dropped.
/// Nothing may be allocated, freed or loaded meanwhile, since the driver may wait for the stream.
pub(super) struct HeldStream {
    word: &'static AtomicU32,
}

impl HeldStream {
    pub(super) fn of(ring: &Ring<CudaDevice>) -> HeldStream {
        let stream = ring.device().stream();
        // The GPU may read the word at any later time, so the memory is never freed.
        let memory = ManuallyDrop::new(PageLockedMemory::new(stream.context(), 4096).expect("host memory"));
        // SAFETY: aligned, and valid for ever.
        let word: &AtomicU32 = unsafe { &*memory.as_ptr().cast::<AtomicU32>() };
        word.store(0, Ordering::SeqCst);
        let _current = stream.context().make_current().expect("a context");
        let (handle, address) = (stream.handle().0 as sys::CUstream, memory.device_address());
        let at_least = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
        // SAFETY: the stream is that of the ring, and the word stays.
        ok(unsafe { sys::cuStreamWaitValue32_v2(handle, address, 1, at_least) });
        HeldStream { word }
    }
}

impl Drop for HeldStream {
    fn drop(&mut self) {
        self.word.store(1, Ordering::SeqCst);
    }
}
