//! Defective sources, a slow stream and a broken context, on a GPU and on the fake driver: one
//! typed error, no slot is lost, and other rings go on.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUresult;
use hostbuf::register::{Budget, CudaHost, MonitorMode, RegistrationCache};
use hostbuf_cuda::CudaContext;
use hostbuf_staging::{
    BorrowedMemory, CudaDevice, DeviceTarget, File, ReadAt, Ring, RingMemory, TransferError,
};
use hostbuf_tests::Scratch;
use hostbuf_tests::fake_cuda::{SLOW_COPIES, with_fake_cuda, with_fake_cuda_and};

use super::copies::{GpuMemory, NULL_PAGE};
use super::held_stream::HeldStream;
use super::ring_contract::{SLOT, alone, check_lost, options, read_back, ring};
use super::rings::{content, target};
use super::streams::first_gpu;

const BYTES: usize = 20 * SLOT + 777;

/// A file of a test, and a copy of its bytes.
struct ComparedFile {
    folder: Scratch,
    file: File,
    content: Vec<u8>,
}

impl ComparedFile {
    fn new(name: &str) -> ComparedFile {
        let (folder, content) = (Scratch::new(name), content(BYTES, 11));
        let path = folder.path("from");
        fs::write(&path, &content).expect("the folder is writable");
        ComparedFile { folder, file: File::open(&path).expect("it is there"), content }
    }

    /// Reads the whole file by a ring, and compares it with what the GPU has then.
    #[track_caller]
    fn check(&self, ring: &Ring<CudaDevice>, to: &DeviceTarget) {
        self.file.pread(ring, to.clone(), 0).wait().expect("it is read");
        self.check_read(ring, to);
    }

    #[track_caller]
    fn check_read(&self, ring: &Ring<CudaDevice>, to: &DeviceTarget) {
        assert!(read_back(ring, &self.folder, to.clone()) == self.content);
    }
}

/// Waits until the stream of a ring has a copy of each slot.
pub(super) fn wait_for_copies(ring: &Ring<CudaDevice>, before: u64) {
    while ring.counters().copies < before + options().slots as u64 {
        std::thread::yield_now();
    }
}

/// A source that reads at most `most` bytes at a time, and states one byte too many from the read
/// of number `lies_at` on.
struct DefectiveSource {
    content: Vec<u8>,
    most: usize,
    lies_at: u64,
    reads: AtomicU64,
}

impl DefectiveSource {
    fn new(content: Vec<u8>, most: usize, lies_at: u64) -> Arc<DefectiveSource> {
        Arc::new(DefectiveSource { content, most, lies_at, reads: AtomicU64::new(0) })
    }
}

impl ReadAt for DefectiveSource {
    fn name(&self) -> String {
        "a defective source".into()
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let number = self.reads.fetch_add(1, Ordering::Relaxed);
        let rest = self.content.get(offset as usize..).unwrap_or_default();
        let bytes = rest.len().min(into.len()).min(self.most);
        into[..bytes].copy_from_slice(&rest[..bytes]);
        Ok(if number >= self.lies_at { into.len() + 1 } else { bytes })
    }
}

/// Reads sources that read short, end early or lie.
fn read_defective_sources() {
    let gpu = first_gpu();
    let context = CudaContext::retain(&gpu).expect("a context");
    let (ring, source) = (ring(&gpu), ComparedFile::new("ring-defective"));
    let to = target(&context, BYTES);
    let short = DefectiveSource::new(source.content.clone(), 10_007, u64::MAX);
    assert_eq!(ring.read(short, 0, to.clone()).wait().expect("it is read"), BYTES as u64);
    source.check_read(&ring, &to);
    for end in [0, 1, SLOT - 1, 5 * SLOT, BYTES - 1] {
        let ending = DefectiveSource::new(source.content[..end].to_vec(), SLOT, u64::MAX);
        match ring.read(ending, 0, to.clone()).wait() {
            Err(TransferError::UnexpectedEnd { offset, landed, .. }) => {
                // The piece with the end, or one after it.
                assert!(offset >= end as u64 && landed <= end as u64, "{end}: {offset} {landed}");
            }
            other => panic!("{other:?}"),
        }
        source.check(&ring, &to);
    }
    for lies_at in [0, 5, 30] {
        let lying = DefectiveSource::new(source.content.clone(), SLOT, lies_at);
        let result = ring.read(lying, 0, to.clone()).wait();
        assert!(matches!(result, Err(TransferError::Io { .. })), "{result:?}");
        source.check(&ring, &to);
    }
}

/// Holds the stream of one ring while another ring of the GPU goes on.
fn hold_one_of_two_rings() {
    let gpu = first_gpu();
    let context = CudaContext::retain(&gpu).expect("a context");
    let (slow, other) = (ring(&gpu), ring(&gpu));
    let source = ComparedFile::new("ring-slow");
    let [to_slow, to_other] = [(); 2].map(|()| target(&context, BYTES));
    let held = HeldStream::of(&slow);
    let pending = source.file.pread(&slow, to_slow.clone(), 0);
    wait_for_copies(&slow, 0);
    for _ in 0..3 {
        source.check(&other, &to_other);
    }
    assert!(!pending.test() && pending.landed() == 0);
    assert_eq!(slow.counters().copies, options().slots as u64, "no slot is used again");
    drop(held);
    assert_eq!(pending.wait().expect("it is read"), BYTES as u64);
    source.check_read(&slow, &to_slow);
}

/// Returns whether an address of this process is mapped.
fn is_mapped(address: usize) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
    maps.lines().any(|line| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let (start, end) = range.expect("a line begins with a range");
        let number = |text| usize::from_str_radix(text, 16).expect("a hexadecimal number");
        (number(start)..number(end)).contains(&address)
    })
}

/// Breaks the context while all slots of a ring are copied. The memory stays registered, since the
/// GPU may access it until the process ends.
fn break_context_in_flight() {
    let gpu = first_gpu();
    let context = CudaContext::retain(&gpu).expect("a context");
    let bytes = options().bytes().expect("valid options");
    let budget = Budget::new(4).bytes(4 * bytes);
    let registrar = Arc::new(CudaHost::new(gpu.ordinal()).expect("a context"));
    let cache = RegistrationCache::new(registrar, budget, MonitorMode::Explicit).expect("with room");
    let cache = Arc::new(cache);
    let memory = BorrowedMemory::leased(&cache, bytes).expect("registered memory");
    let address = RingMemory::address(&memory).as_ptr() as usize;
    let device = CudaDevice::new(&context).expect("a stream");
    let ring = Ring::new(device, options(), memory).expect("a ring");
    let source = ComparedFile::new("ring-broken-in-flight");
    let to = target(&context, BYTES);
    let gpu_memory = GpuMemory::new(4096);
    let kernel = gpu_memory.writing_kernel();
    source.check(&ring, &to);

    let before = ring.counters().copies;
    let held = HeldStream::of(&ring);
    let transfers = [(); 3].map(|()| source.file.pread(&ring, to.clone(), 0));
    wait_for_copies(&ring, before);
    assert!(transfers.iter().all(|transfer| !transfer.test()));
    assert_ne!(kernel.write(NULL_PAGE), CUresult::CUDA_SUCCESS);
    for transfer in transfers {
        match transfer.wait() {
            Err(TransferError::Device { source, landed: 0, .. }) if source.is_lost() => {}
            other => panic!("a transfer that the context has broken under: {other:?}"),
        }
    }
    check_lost(&ring, &source.file, &to);
    // Nobody waits for copies that never end.
    let begun = Instant::now();
    drop(ring);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let stats = cache.stats();
    assert_eq!((stats.registrations, stats.registered_bytes, stats.invalidated), (1, bytes as u64, 0));
    assert!(is_mapped(address) && is_mapped(address + bytes - 1));
    drop(held);
}

#[test]
fn defective_sources_are_errors_with_the_fake_driver() {
    if with_fake_cuda("gpu::ring_faults::defective_sources_are_errors_with_the_fake_driver") {
        read_defective_sources();
    }
}

#[test]
#[ignore = "needs a GPU"]
fn defective_sources_are_errors_with_a_gpu() {
    read_defective_sources();
}

#[test]
fn a_held_stream_of_the_fake_driver_holds_up_its_own_ring_only() {
    let name = "gpu::ring_faults::a_held_stream_of_the_fake_driver_holds_up_its_own_ring_only";
    if with_fake_cuda_and(name, &[SLOW_COPIES]) {
        hold_one_of_two_rings();
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_held_stream_of_a_gpu_holds_up_its_own_ring_only() {
    hold_one_of_two_rings();
}

#[test]
fn memory_stays_registered_after_the_context_of_the_fake_driver_broke_in_flight() {
    let name =
        "gpu::ring_faults::memory_stays_registered_after_the_context_of_the_fake_driver_broke_in_flight";
    if with_fake_cuda_and(name, &[SLOW_COPIES]) {
        break_context_in_flight();
    }
}

#[test]
#[ignore = "needs a GPU"]
fn memory_stays_registered_after_a_context_broke_in_flight() {
    if alone("gpu::ring_faults::memory_stays_registered_after_a_context_broke_in_flight") {
        break_context_in_flight();
    }
}
