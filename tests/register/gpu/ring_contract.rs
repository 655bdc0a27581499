//! The contract of rings on a GPU, and on the fake driver: batches, random ends, a broken context,
//! two GPUs, and several processes.

#![allow(unsafe_code, reason = "destroys a context by a foreign function")]

use std::fs;
use std::io;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use hostbuf_cuda::{CudaContext, CudaGpu, Driver};
use hostbuf_staging::{
    CudaDevice, DeviceTarget, File, FileOptions, ReadAt, Ring, RingOptions, TransferError, TransferPart,
};
use hostbuf_tests::Scratch;
use hostbuf_tests::fake_cuda::with_fake_cuda;

use super::MIB;
use super::copies::GpuMemory;
use super::rings::{content, target};
use super::streams::first_gpu;

pub(super) const SLOT: usize = MIB;
/// The variable that names the part of a test in another process.
pub(super) const PART: &str = "HOSTBUF_TEST_RING_PART";

/// Returns the options of the rings: three slots of 1 MiB.
pub(super) fn options() -> RingOptions {
    RingOptions::new().slots(3).slot_bytes(SLOT).piece_bytes(SLOT / 4).workers(3)
}

pub(super) fn ring(gpu: &CudaGpu) -> Ring<CudaDevice> {
    Ring::for_gpu(gpu, options()).expect("a ring")
}

/// Returns what the memory of a GPU has.
pub(super) fn read_back(ring: &Ring<CudaDevice>, folder: &Scratch, from: DeviceTarget) -> Vec<u8> {
    let path = folder.path("back");
    let file = FileOptions::new().write(true).open(&path).expect("it is made");
    file.pwrite(ring, from, 0).wait().expect("it is written");
    let found = fs::read(&path).expect("it was written");
    fs::remove_file(&path).expect("it is there");
    found
}

/// Moves many small ranges, and large ones between them, in one batch each way.
fn move_batches() {
    let gpu = first_gpu();
    let context = CudaContext::retain(&gpu).expect("a context");
    let (ring, folder) = (ring(&gpu), Scratch::new("ring-batches"));
    let bytes = 40 * SLOT;
    let path = folder.path("from");
    fs::write(&path, content(bytes, 1)).expect("the folder is writable");
    let memory = target(&context, bytes);
    // The ranges cover the file in reverse order on the GPU: small ones, and some of three slots.
    let (mut parts, mut expected, mut at) = (Vec::new(), Vec::new(), 0);
    let lengths =
        (0..).map(|number: usize| if number % 50 == 49 { 3 * SLOT } else { 1000 + number * 37 % 5000 });
    let mut end = bytes;
    for length in lengths {
        if at + length > bytes {
            break;
        }
        let to = memory.part((end - length) as u64..end as u64).expect("it is within");
        parts.push(TransferPart::new(at as u64, to));
        expected.push((at, end - length, length));
        (at, end) = (at + length, end - length);
    }
    let file = File::open(&path).expect("it is there");
    let moved = file.pread_batch(&ring, parts.clone()).wait().expect("it is read");
    assert_eq!(moved, at as u64);
    let (source, found) = (content(bytes, 1), read_back(&ring, &folder, memory));
    for (from, to, length) in expected {
        assert!(found[to..to + length] == source[from..from + length], "{length} bytes at {from}");
    }
    let back = folder.path("batch");
    let file = FileOptions::new().write(true).open(&back).expect("it is made");
    file.pwrite_batch(&ring, parts).wait().expect("it is written");
    assert!(fs::read(&back).expect("it was written") == source[..at]);
}

/// A file whose reads fail from a random one on.
struct CutFile {
    file: File,
    reads: AtomicU64,
    fails_at: u64,
}

impl ReadAt for CutFile {
    fn name(&self) -> String {
        ReadAt::name(&self.file)
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.reads.fetch_add(1, Ordering::Relaxed) == self.fails_at {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        self.file.read_at(into, offset)
    }
}

/// Lets transfers end at random moments: by an error of the source, by being cancelled or dropped,
/// and by the end of their ring. None hangs, no slot is lost, and no byte is wrong.
fn end_at_random(rounds: u64) {
    let gpu = first_gpu();
    let context = CudaContext::retain(&gpu).expect("a context");
    let folder = Scratch::new("ring-random");
    let path = folder.path("from");
    let bytes = 5 * SLOT + 12345;
    fs::write(&path, content(bytes, 7)).expect("the folder is writable");
    let file = File::open(&path).expect("it is there");
    let memory = target(&context, bytes);
    let mut random = 0x2545_F491_4F6C_DD1D_u64;
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let mut own = ring(&gpu);
    for round in 0..rounds {
        let fails_at = if next(2) == 0 { next(40) } else { u64::MAX };
        let cut = Arc::new(CutFile { file: file.clone(), reads: AtomicU64::new(0), fails_at });
        let transfer = own.read(cut, 0, memory.clone());
        let begun = Instant::now();
        let pause = Duration::from_micros(next(1500));
        while begun.elapsed() < pause {
            std::hint::spin_loop();
        }
        match next(4) {
            0 => transfer.cancel(),
            1 => {
                drop(transfer);
                continue;
            }
            2 => own = ring(&gpu),
            _ => {}
        }
        let landed = match transfer.wait() {
            Ok(moved) => moved,
            Err(TransferError::Io { landed, .. } | TransferError::Cancelled { landed }) => landed,
            Err(error) => panic!("round {round}: {error}"),
        };
        assert!(landed == bytes as u64 || landed.is_multiple_of(SLOT as u64), "round {round}: {landed}");
    }
    // All slots of the ring are free: a whole transfer has all bytes.
    file.pread(&own, memory.clone(), 0).wait().expect("it is read");
    assert!(read_back(&own, &folder, memory) == content(bytes, 7));
}

/// Runs the test `name` again as another process that does `part` of it.
pub(super) fn other_process(name: &str, part: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["--include-ignored", "--exact", name]);
    command.args(["--nocapture", "--test-threads=1"]).env(PART, part);
    command
}

/// Runs `part` in another process. Returns true in that process.
pub(super) fn alone(name: &str) -> bool {
    if std::env::var_os(PART).is_some() {
        return true;
    }
    let output = other_process(name, "alone").output().expect("it starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    print!("{out}");
    assert!(output.status.success() && out.contains("1 passed"), "{out}{err}");
    false
}

/// Checks that transfers of a ring fail since its GPU is lost, also later ones.
pub(super) fn check_lost(ring: &Ring<CudaDevice>, file: &File, to: &DeviceTarget) {
    for _ in 0..3 {
        match file.pread(ring, to.clone(), 0).wait() {
            Err(TransferError::Device { source, .. }) if source.is_lost() => println!("{source}"),
            other => panic!("a transfer to a broken context: {other:?}"),
        }
    }
    assert!(!ring.is_usable());
}

#[test]
#[ignore = "needs a GPU"]
fn a_broken_context_ends_a_ring_with_one_error() {
    if !alone("gpu::ring_contract::a_broken_context_ends_a_ring_with_one_error") {
        return;
    }
    let gpu = first_gpu();
    let context = CudaContext::retain(&gpu).expect("a context");
    let (ring, folder) = (ring(&gpu), Scratch::new("ring-broken"));
    let path = folder.path("from");
    fs::write(&path, content(20 * SLOT, 1)).expect("the folder is writable");
    let file = File::open(&path).expect("it is there");
    let to = target(&context, 20 * SLOT);
    file.pread(&ring, to.clone(), 0).wait().expect("it is read");
    println!("the kernel: {:?}", GpuMemory::new(4096).break_context());
    check_lost(&ring, &file, &to);
    // A GPU that is lost keeps the pages, and nobody waits for it.
    let begun = Instant::now();
    drop(ring);
    assert!(begun.elapsed() < Duration::from_secs(5));
}

/// Destroys the primary context of a GPU, as another part of the program can.
pub(super) fn reset(gpu: &CudaGpu) {
    // SAFETY: nothing else uses the context; objects of it end with errors.
    let result = unsafe { sys::cuDevicePrimaryCtxReset_v2(gpu.ordinal() as i32) };
    assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
}

/// A context that was destroyed is lost for its ring only. A kernel that breaks its context is
/// more: the driver (580.159, two H100) then fails the calls for all GPUs of the process.
#[test]
#[ignore = "needs two GPUs"]
fn a_lost_context_leaves_the_ring_of_another_gpu() {
    if !alone("gpu::ring_contract::a_lost_context_leaves_the_ring_of_another_gpu") {
        return;
    }
    let gpus = Driver::find().and_then(Driver::gpus).expect("a GPU");
    let [first, second, ..] = &gpus[..] else {
        return println!("skipped: a lost context beside another GPU: there is one GPU");
    };
    let folder = Scratch::new("ring-two");
    let path = folder.path("from");
    fs::write(&path, content(20 * SLOT, 2)).expect("the folder is writable");
    let file = File::open(&path).expect("it is there");
    let [on_first, on_second] = [first, second].map(|gpu| {
        let context = CudaContext::retain(gpu).expect("a context");
        (ring(gpu), target(&context, 20 * SLOT))
    });
    for (ring, to) in [&on_first, &on_second] {
        file.pread(ring, to.clone(), 0).wait().expect("it is read");
    }
    reset(first);
    check_lost(&on_first.0, &file, &on_first.1);
    file.pread(&on_second.0, on_second.1.clone(), 0).wait().expect("the other GPU goes on");
    assert!(read_back(&on_second.0, &folder, on_second.1.clone()) == content(20 * SLOT, 2));
}

#[test]
#[ignore = "needs a GPU"]
fn eight_processes_share_a_gpu() {
    const NAME: &str = "gpu::ring_contract::eight_processes_share_a_gpu";
    if std::env::var_os(PART).is_some() {
        move_batches();
        return end_at_random(20);
    }
    let start = |number: usize| other_process(NAME, &number.to_string()).spawn().expect("it starts");
    let mut children: Vec<_> = (0..8).map(start).collect();
    // All are waited for, also after one has failed.
    let passed = children.iter_mut().map(|child| child.wait().expect("a child").success());
    assert!(passed.collect::<Vec<_>>().iter().all(|&passed| passed));
}

#[test]
fn batches_move_to_the_fake_driver_and_back() {
    if with_fake_cuda("gpu::ring_contract::batches_move_to_the_fake_driver_and_back") {
        move_batches();
    }
}

#[test]
fn transfers_to_the_fake_driver_end_at_random() {
    if with_fake_cuda("gpu::ring_contract::transfers_to_the_fake_driver_end_at_random") {
        end_at_random(200);
    }
}

#[test]
#[ignore = "needs a GPU"]
fn batches_move_to_a_gpu_and_back() {
    move_batches();
}

#[test]
#[ignore = "needs a GPU"]
fn transfers_to_a_gpu_end_at_random() {
    end_at_random(1000);
}
