//! Rings of hostbuf-staging between files and a GPU, and on the fake driver.

use std::fs;
use std::sync::Arc;

use hostbuf::register::{Budget, CudaHost, Error, MonitorMode, RegistrationCache};
use hostbuf_cuda::{CudaContext, DeviceMemory, PageLockedMemory};
use hostbuf_staging::{
    Backend, CudaDevice, DeviceTarget, File, FileOptions, Ring, RingError, RingOptions, TransferError,
};
use hostbuf_tests::Scratch;
use hostbuf_tests::fake_cuda::with_fake_cuda;

use super::MIB;
use super::streams::first_gpu;

const SLOT: usize = MIB;

/// Returns bytes that differ from one place to the next.
pub(super) fn content(bytes: usize, seed: u64) -> Vec<u8> {
    let word = |number: u64| (number ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
    (0..bytes.div_ceil(8) as u64).flat_map(word).take(bytes).collect()
}

fn ring(context: &CudaContext) -> Ring<CudaDevice> {
    let options = RingOptions::new().slots(3).slot_bytes(SLOT).piece_bytes(SLOT / 4).workers(3);
    let memory = PageLockedMemory::new(context, options.bytes().expect("valid options"));
    let device = CudaDevice::new(context).expect("a stream");
    Ring::new(device, options, memory.expect("host memory")).expect("a ring")
}

pub(super) fn target(context: &CudaContext, bytes: usize) -> DeviceTarget {
    DeviceTarget::new(Arc::new(DeviceMemory::new(context, bytes).expect("memory of the GPU")))
}

/// Moves files to the memory of a GPU and back, by two rings at the same time.
fn move_files() {
    let context = CudaContext::retain(&first_gpu()).expect("a context");
    let folder = Scratch::new("rings");
    let bytes = 20 * SLOT + 12345;
    let (from, to) = (folder.path("from"), folder.path("to"));
    fs::write(&from, content(bytes, 1)).expect("the folder is writable");
    let rings = [ring(&context), ring(&context)];
    let memory = target(&context, bytes);
    for (round, backend) in [Backend::Posix, Backend::Auto].into_iter().enumerate() {
        let source = Arc::new(FileOptions::new().backend(backend).open(&from).expect("it is there"));
        let sink = Arc::new(FileOptions::new().backend(backend).write(true).open(&to).expect("it is made"));
        // Both rings move one half.
        let half = bytes as u64 / 2 + 1 + round as u64;
        let parts = [0..half, half..bytes as u64];
        let part = |number: usize| memory.part(parts[number].clone()).expect("it is within");
        let reads =
            [0, 1].map(|number| rings[number].read(source.clone(), parts[number].start, part(number)));
        for read in reads {
            read.wait().expect("it is read");
        }
        let writes =
            [1, 0].map(|number| rings[1 - number].write(part(number), sink.clone(), parts[number].start));
        for write in writes {
            write.wait().expect("it is written");
        }
        assert!(fs::read(&to).expect("it was written") == content(bytes, 1), "{}", source.backend());
        fs::remove_file(&to).expect("it is there");
    }
    assert_eq!(rings[0].counters().to_device + rings[1].counters().to_device, 2 * bytes as u64);
}

/// Drops transfers and a ring while the GPU copies, and uses the GPU afterwards.
fn end_early() {
    let context = CudaContext::retain(&first_gpu()).expect("a context");
    let folder = Scratch::new("rings-early");
    let path = folder.path("file");
    fs::write(&path, content(40 * SLOT, 2)).expect("the folder is writable");
    let file = Arc::new(File::open(&path).expect("it is there"));
    for round in 0..20 {
        let early = ring(&context);
        let cancelled = early.read(file.clone(), 0, target(&context, 40 * SLOT));
        let dropped = early.read(file.clone(), 0, target(&context, 40 * SLOT));
        while early.counters().copies < round % 5 {
            std::thread::yield_now();
        }
        cancelled.cancel();
        drop(dropped);
        match cancelled.wait() {
            Ok(bytes) => assert_eq!(bytes, 40 * SLOT as u64),
            Err(TransferError::Cancelled { landed }) => assert_eq!(landed % SLOT as u64, 0),
            Err(error) => panic!("{error}"),
        }
        let pending = early.read(file.clone(), 0, target(&context, 40 * SLOT));
        drop(early);
        assert!(pending.test(), "the ring has waited for it");
    }
    let short = ring(&context).read(file, 39 * SLOT as u64, target(&context, 2 * SLOT)).wait();
    match short {
        Err(TransferError::UnexpectedEnd { offset, landed, .. }) => {
            assert!(offset >= 40 * SLOT as u64 && landed <= SLOT as u64, "{offset} {landed}");
        }
        other => panic!("{other:?}"),
    }
}

/// Moves a file by the ring that the process shares, in memory that is registered with CUDA.
fn share() {
    let gpu = first_gpu();
    let shared = Ring::of_gpu(&gpu).expect("a ring");
    assert!(Arc::ptr_eq(&shared, &Ring::of_gpu(&gpu).expect("the same ring")));
    let context = CudaContext::retain(&gpu).expect("a context");
    let folder = Scratch::new("rings-shared");
    let (from, to) = (folder.path("from"), folder.path("to"));
    let bytes = shared.options().slot_bytes + 777;
    fs::write(&from, content(bytes, 3)).expect("the folder is writable");
    let memory = target(&context, bytes);
    shared
        .read(Arc::new(File::open(&from).expect("it is there")), 0, memory.clone())
        .wait()
        .expect("it is read");
    let sink = Arc::new(FileOptions::new().write(true).open(&to).expect("it is made"));
    shared.write(memory, sink, 0).wait().expect("it is written");
    assert!(fs::read(&to).expect("it was written") == content(bytes, 3));
    let known = Arc::downgrade(&shared);
    drop(shared);
    assert_eq!(known.strong_count(), 0, "it ends with its last user");
    assert!(Ring::of_gpu(&gpu).expect("another ring").is_usable());
}

/// Moves a file by a ring whose memory counts against the budget of a cache.
fn lease() {
    let gpu = first_gpu();
    let options = RingOptions::new().slots(3).slot_bytes(SLOT).piece_bytes(SLOT / 4).workers(3);
    let bytes = options.bytes().expect("valid options");
    let registrar = Arc::new(CudaHost::new(gpu.ordinal()).expect("a context"));
    let budget = Budget::new(4).bytes(2 * bytes - 4096);
    let cache = RegistrationCache::new(registrar, budget, MonitorMode::Explicit).expect("a budget with room");
    let cache = Arc::new(cache);
    let ring = Ring::for_gpu_with_cache(&gpu, options, &cache).expect("a ring");
    match Ring::for_gpu_with_cache(&gpu, options, &cache) {
        Err(RingError::Register(Error::Budget { bytes: counted, .. })) => assert_eq!(counted.0, bytes),
        other => panic!("{other:?}"),
    }
    let context = CudaContext::retain(&gpu).expect("a context");
    let folder = Scratch::new("rings-leased");
    let (from, to) = (folder.path("from"), folder.path("to"));
    fs::write(&from, content(9 * SLOT + 5, 4)).expect("the folder is writable");
    let memory = target(&context, 9 * SLOT + 5);
    let read = ring.read(Arc::new(File::open(&from).expect("it is there")), 0, memory.clone());
    read.wait().expect("it is read");
    let sink = Arc::new(FileOptions::new().write(true).open(&to).expect("it is made"));
    ring.write(memory, sink, 0).wait().expect("it is written");
    assert!(fs::read(&to).expect("it was written") == content(9 * SLOT + 5, 4));
    drop(ring);
    assert_eq!(cache.stats().registrations, 0, "the registration has ended with the ring");
    drop(Ring::for_gpu_with_cache(&gpu, options, &cache).expect("there is room again"));
}

#[test]
fn a_ring_of_the_fake_driver_counts_against_a_budget() {
    if with_fake_cuda("gpu::rings::a_ring_of_the_fake_driver_counts_against_a_budget") {
        lease();
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_ring_of_a_gpu_counts_against_a_budget() {
    lease();
}

#[test]
fn parts_of_a_process_share_a_ring_of_the_fake_driver() {
    if with_fake_cuda("gpu::rings::parts_of_a_process_share_a_ring_of_the_fake_driver") {
        share();
    }
}

#[test]
#[ignore = "needs a GPU"]
fn parts_of_a_process_share_a_ring_of_a_gpu() {
    share();
}

#[test]
fn files_move_to_the_fake_driver_and_back() {
    if with_fake_cuda("gpu::rings::files_move_to_the_fake_driver_and_back") {
        move_files();
    }
}

#[test]
fn rings_of_the_fake_driver_end_early() {
    if with_fake_cuda("gpu::rings::rings_of_the_fake_driver_end_early") {
        end_early();
    }
}

#[test]
#[ignore = "needs a GPU"]
fn files_move_to_a_gpu_and_back() {
    move_files();
}

#[test]
#[ignore = "needs a GPU"]
fn rings_of_a_gpu_end_early() {
    end_early();
}
