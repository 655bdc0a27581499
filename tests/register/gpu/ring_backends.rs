//! Files that each backend moves through slots that are registered with CUDA, to a GPU and to the
//! fake driver.

use std::fs;
use std::io;
use std::path::Path;

use hostbuf_cuda::{CudaContext, CudaGpu};
use hostbuf_staging::{
    Backend, DeviceTarget, File, FileOptions, Ring, RingOptions, cached_pages, drop_cached_pages,
};
use hostbuf_tests::fake_cuda::with_fake_cuda;
use hostbuf_tests::{Scratch, skip};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};

use super::MIB;
use super::rings::{content, target};
use super::streams::first_gpu;

const SLOT: usize = MIB;
const BYTES: usize = 20 * SLOT + 12345;

/// Returns the number of bytes that this process has pinned, which the kernel counts for fixed
/// buffers of io_uring.
fn pinned() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).expect("Linux 3.2 has it");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
}

/// Opens a file by a backend. Returns `None` if the machine does not support it.
fn open(path: impl AsRef<Path>, backend: Backend, is_written: bool) -> Option<File> {
    match FileOptions::new().backend(backend).write(is_written).open(path) {
        Ok(file) => Some(file),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            skip(&format!("transfers of a GPU by {backend}: {error}"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Reads a file by a new ring with slots that are registered with CUDA, and writes it by the same
/// backend.
fn move_file(gpu: &CudaGpu, folder: &Scratch, memory: &DeviceTarget, (backend, seed): (Backend, u64)) {
    let options = RingOptions::new().slots(3).slot_bytes(SLOT).piece_bytes(SLOT / 4).workers(3);
    let slots = options.bytes().expect("valid options");
    let (from, to) = (folder.path("from"), folder.path("to"));
    fs::write(&from, content(BYTES, seed)).expect("the folder is writable");
    let cached = fs::File::open(&from).expect("it is there");
    drop_cached_pages(&cached).expect("its pages can be written");
    let Some(source) = open(&from, backend, false) else { return };
    let ring = Ring::for_gpu(gpu, options).expect("a ring");
    let before = pinned();
    let moved = source.pread(&ring, memory.clone(), 0).wait();
    assert_eq!(moved.expect("it is read"), BYTES as u64, "{backend}");
    let choice = source.backend();
    assert_eq!(choice.backend, backend, "{choice}");
    if let (Ok(now), Backend::Direct | Backend::Uring) = (cached_pages(&cached), backend)
        && choice.why == "as requested"
    {
        assert!(now.cached < now.pages / 2, "{choice} has filled the page cache: {now:?}");
    }
    if backend == Backend::Uring {
        if choice.why.contains("raise ulimit -l") {
            skip(&format!("fixed buffers of slots that are registered with CUDA: {choice}"));
        } else {
            assert!(!choice.why.contains("not fixed buffers"), "{choice}");
            // Each thread that has read has pinned all slots.
            let now = pinned();
            assert!(now >= before + slots, "{before} bytes were pinned, and now {now}");
        }
    }
    let Some(sink) = open(&to, backend, true) else { return };
    sink.pwrite(&ring, memory.clone(), 0).wait().expect("it is written");
    assert_eq!(sink.backend().backend, backend, "{}", sink.backend());
    assert!(fs::read(&to).expect("it was written") == content(BYTES, seed), "{}", sink.backend());
    fs::remove_file(&to).expect("it is there");
    drop(ring);
    assert!(pinned() <= before, "{} bytes are pinned after the ring, {before} before", pinned());
}

/// Moves a file by each backend that is for files on a disk.
fn move_by_all_backends() {
    let gpu = first_gpu();
    let context = CudaContext::retain(&gpu).expect("a context");
    let folder = Scratch::new("ring-backends");
    if statfs(&folder.0).expect("it exists").filesystem_type() == TMPFS_MAGIC {
        skip("transfers of a GPU past the page cache: target/ is on tmpfs");
    }
    let memory = target(&context, BYTES);
    for moved in [(Backend::Posix, 1), (Backend::Direct, 2), (Backend::Uring, 3)] {
        move_file(&gpu, &folder, &memory, moved);
    }
}

#[test]
fn each_backend_moves_files_to_the_fake_driver_and_back() {
    if with_fake_cuda("gpu::ring_backends::each_backend_moves_files_to_the_fake_driver_and_back") {
        move_by_all_backends();
    }
}

#[test]
#[ignore = "needs a GPU"]
fn each_backend_moves_files_to_a_gpu_and_back() {
    move_by_all_backends();
}
