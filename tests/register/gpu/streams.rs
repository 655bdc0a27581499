//! Streams and events of hostbuf-cuda, also on the fake driver.

use hostbuf_cuda::{
    BorrowedStream, CudaContext, CudaEvent, CudaGpu, CudaStream, DeviceMemory, Driver, GpuFeature,
    HostAccess, PageLockedMemory, StreamHandle,
};

use super::MIB;
use crate::memory::PAGE;

/// Returns the first GPU.
pub(super) fn first_gpu() -> CudaGpu {
    Driver::find().and_then(|driver| driver.gpu(0)).expect("a GPU")
}

/// Page-locked memory with a stream that copies.
pub(super) struct HostCopies {
    pub(super) stream: CudaStream,
    memory: PageLockedMemory,
}

impl HostCopies {
    pub(super) fn new(context: &CudaContext, bytes: usize) -> HostCopies {
        HostCopies {
            stream: CudaStream::new(context).expect("a stream"),
            memory: PageLockedMemory::new(context, bytes).expect("host memory"),
        }
    }

    /// Starts a copy of pages that depend on `seed` to the GPU's memory at `to`.
    pub(super) fn start_write(&mut self, to: u64, seed: u8) {
        let bytes = self.memory.bytes();
        let slice = std::ptr::slice_from_raw_parts_mut(self.memory.as_ptr(), bytes);
        // SAFETY: nothing else uses the memory: all copies before have ended.
        for (number, page) in unsafe { (*slice).chunks_mut(PAGE).enumerate() } {
            page.fill(content(number, seed));
        }
        // SAFETY: the memory lives as long as `self`, whose users wait for the copy.
        unsafe { self.stream.copy_to_device(slice, to) }.expect("a copy");
    }

    /// Copies the GPU's memory at `from`, and checks that it has the pages of `seed`.
    #[track_caller]
    pub(super) fn check(&mut self, from: u64, seed: u8) {
        let bytes = self.memory.bytes();
        let slice = std::ptr::slice_from_raw_parts_mut(self.memory.as_ptr(), bytes);
        // SAFETY: as in `start_write`; this function waits for the copy.
        let found = unsafe {
            slice.cast::<u8>().write_bytes(0, bytes);
            self.stream.copy_to_host(hostbuf_cuda::DeviceSpan::new(from, bytes), slice).expect("a copy");
            self.stream.synchronize().expect("it ends");
            &*slice
        };
        for (number, page) in found.chunks(PAGE).enumerate() {
            assert!(
                page == &[content(number, seed); PAGE][..page.len()],
                "page {number} of {bytes} bytes is wrong"
            );
        }
    }
}

/// Returns the byte of a page in the content that belongs to `seed`.
fn content(page: usize, seed: u8) -> u8 {
    (page as u8).wrapping_mul(31) ^ (page >> 8) as u8 ^ seed
}

#[test]
#[ignore = "needs a GPU"]
fn a_gpu_is_found_by_its_uuid_and_reports_its_features() {
    let gpu = first_gpu();
    let uuid = gpu.uuid().expect("a UUID");
    let text = uuid.to_string();
    assert_eq!(text.parse(), Ok(uuid));
    assert_eq!(gpu.driver().gpu_with_uuid(&uuid), Ok(gpu));
    let features = [
        GpuFeature::ReadOnlyRegistration,
        GpuFeature::VirtualMemory,
        GpuFeature::DescriptorExport,
        GpuFeature::IpcEvents,
    ];
    println!("{}, {text}: {:?}", gpu.name().expect("a name"), features.map(|feature| gpu.reports(feature)));
}

#[test]
#[ignore = "needs a GPU"]
fn a_stream_that_waits_for_an_event_sees_the_copy_before_it() {
    const BYTES: usize = 64 * MIB;
    let context = CudaContext::retain(&first_gpu()).expect("a context");
    let mut first = HostCopies::new(&context, BYTES);
    let mut second = HostCopies::new(&context, BYTES);
    let memory = [(); 2].map(|()| DeviceMemory::new(&context, BYTES).expect("memory"));
    let times = [(); 2].map(|()| CudaEvent::with_timing(&context).expect("an event"));
    let written = CudaEvent::new(&context).expect("an event");
    for seed in 0..8 {
        times[0].record(&first.stream).expect("recorded");
        first.start_write(memory[0].address(), seed);
        times[1].record(&first.stream).expect("recorded");
        written.record(&first.stream).expect("recorded");
        second.stream.wait(&written).expect("it waits");
        // SAFETY: both memories are as long, and live until `check` has waited.
        unsafe { second.stream.copy_on_device(memory[0].span(), memory[1].address()) }.expect("a copy");
        second.check(memory[1].address(), seed);
        assert_eq!((written.is_complete(), first.stream.is_idle()), (Ok(true), Ok(true)));
    }
    written.synchronize().expect("complete");
    let elapsed = times[1].elapsed_since(&times[0]).expect("both are complete");
    println!("64 MiB from page-locked memory, by events: {elapsed:?}");
}

#[test]
#[ignore = "needs a GPU"]
fn default_streams_copy_registered_memory() {
    let context = CudaContext::retain(&first_gpu()).expect("a context");
    let device = DeviceMemory::new(&context, MIB).expect("memory");
    let mut bytes = vec![0x5au8; 2 * MIB];
    let start = bytes.as_mut_ptr() as usize;
    let current = context.make_current().expect("a context");
    current.register_host(start..start + 2 * MIB, HostAccess::ReadWrite).expect("it is mapped");
    drop(current);
    for (round, handle) in
        [StreamHandle::DEFAULT, StreamHandle::LEGACY, StreamHandle::PER_THREAD].iter().enumerate()
    {
        let (from, to) = bytes.split_at_mut(MIB);
        from.fill(round as u8 + 1);
        // SAFETY: default streams exist always; both halves live until the copies have ended.
        unsafe {
            let stream = BorrowedStream::from_raw(&context, *handle).expect("streams");
            stream.copy_to_device(&raw const *from, device.address()).expect("a copy");
            stream.copy_to_host(device.span(), &raw mut *to).expect("a copy");
            stream.synchronize().expect("it ends");
        }
        assert_eq!(from, to, "{handle:?}");
    }
    let current = context.make_current().expect("a context");
    current.unregister_host(start).expect("registered");
    assert!(current.unregister_host(start).is_err());
}
