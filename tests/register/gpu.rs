//! CudaHost on a GPU. `scripts/test-gpu` runs these tests, and prints the measurements.

#![allow(unsafe_code, reason = "the GPU driver is called by foreign functions")]

mod adopted_frames;
mod before_main;
mod copies;
mod copy_batches;
mod cufile;
mod figures;
mod gpu_sections;
mod held_stream;
mod legacy_handles;
mod pool_blocks;
mod ring_backends;
mod ring_contract;
mod ring_ends;
mod ring_faults;
mod ring_futures;
mod rings;
mod row_copies;
mod shared_memory;
mod stream_transfers;
mod streams;
mod thread_streams;
mod topology;

use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::sys;
use hostbuf::job::Solo;
use hostbuf::register::Error;
use hostbuf::register::testing::contract;
use hostbuf::register::{
    Access, Budget, CudaHost, MonitorMode, Registrar, Registration, RegistrationCache, Span,
};
use hostbuf::{BufferOptions, HostBuffer, Pages, Proof};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use crate::memory::{GuardedMapping, PAGE};
use crate::span;
use copies::{GpuMemory, ok};

const MIB: usize = 1 << 20;

fn gpu() -> Arc<CudaHost> {
    Arc::new(CudaHost::new(0).expect("a GPU"))
}

/// Allocates a filled buffer.
fn buffer(bytes: usize, pages: Pages) -> hostbuf::Result<HostBuffer> {
    let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(bytes as u64).pages(pages))?;
    // SAFETY: this process's, and nobody else looks at it yet.
    unsafe { buffer.as_ptr().as_ptr().write_bytes(0x5a, buffer.len()) };
    Ok(buffer)
}

fn whole(buffer: &HostBuffer) -> Span {
    span(buffer.as_ptr().as_ptr() as usize, buffer.len())
}

#[test]
#[ignore = "needs a GPU"]
fn probe_describes_the_gpu() {
    let probe = CudaHost::probe();
    println!("probe: {probe}");
    assert!(probe.is_ready());
    assert!(matches!(CudaHost::new(999), Err(Error::Unsupported { .. })));
}

#[test]
#[ignore = "needs a GPU"]
fn cuda_keeps_the_contract() {
    contract::check(|| CudaHost::new(0).expect("a GPU"));
}

#[test]
#[ignore = "needs a GPU"]
fn the_callers_context_stays_current() {
    let gpu = gpu();
    let current = || {
        let mut context = std::ptr::null_mut();
        // SAFETY: the driver is initialised.
        ok(unsafe { sys::cuCtxGetCurrent(&raw mut context) });
        context
    };
    std::thread::spawn(move || {
        let area = GuardedMapping::new(1);
        assert!(current().is_null());
        let registration = Registration::new(&gpu, span(area.at(), 10), Access::WRITE).expect("mapped");
        assert!(current().is_null());
        registration.deregister().expect("registered");
        let _device = GpuMemory::new(PAGE);
        let mine = current();
        assert!(!mine.is_null());
        Registration::new(&gpu, span(area.at(), 10), Access::WRITE).map(drop).expect("mapped");
        assert_eq!(current(), mine);
    })
    .join()
    .expect("no failure");
}

#[test]
#[ignore = "needs a GPU"]
fn an_overlap_is_an_error_that_names_it() {
    let gpu = gpu();
    let area = GuardedMapping::new(4);
    let _held = Registration::new(&gpu, span(area.at(), 2 * PAGE), Access::WRITE).expect("mapped");
    let error = Registration::new(&gpu, span(area.at(), 4 * PAGE), Access::WRITE).unwrap_err();
    println!("overlap: {error}");
    assert!(matches!(&error, Error::Registration { why, .. } if why.contains("ALREADY_REGISTERED")));
}

#[test]
#[ignore = "needs a GPU"]
fn unmapped_memory_is_an_error_that_names_it() {
    let gpu = gpu();
    let area = GuardedMapping::new(1);
    for access in [Access::READ, Access::WRITE] {
        let error = Registration::new(&gpu, span(area.at(), 2 * PAGE), access).unwrap_err();
        println!("not mapped, {access}: {error}");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_frozen_buffer_can_be_read_by_the_gpu_and_not_written() {
    let gpu = gpu();
    let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(8 << 20).pages(Pages::Small)).expect("8 MiB");
    buffer
        .initialize(|arena| {
            let place = arena.take(std::alloc::Layout::from_size_align(MIB, 4096).expect("a layout"))?;
            // SAFETY: a MiB of the arena that was just taken.
            unsafe { place.as_ptr().cast::<u8>().write_bytes(0xa7, MIB) };
            arena.place(0u64)
        })
        .expect("filled");
    let span = whole(&buffer);
    // Freezing evicts a cache's registrations of the buffer: the kernel does not seal pages that
    // are pinned.
    let budget = Budget::new(4).bytes(64 * MIB);
    let cache = RegistrationCache::new(gpu.clone(), budget, MonitorMode::Strict).expect("with room");
    cache.keep(buffer.as_ptr().as_ptr(), buffer.len(), Access::WRITE).expect("kept");
    let frozen = buffer.freeze(&Solo).expect("frozen");
    assert_eq!((frozen.proof(), cache.stats().registrations), (&Proof::Sealed, 0));
    let device = GpuMemory::new(buffer.len());

    let error = gpu.register(&span.into(), Access::WRITE).expect_err("nobody may write to it");
    println!("frozen, for writing: {error}");
    let registration = Registration::new(&gpu, span, Access::READ).expect("for reading it may be registered");
    let chunk = registration.handle().chunks()[0];
    println!("frozen, for reading: {} is at {:#x} for the GPU", chunk.host, chunk.device);
    device.copy_in(span.start(), span.len());
    device.finish();
    assert_eq!(device.read(buffer.len()), frozen.bytes().expect("sealed"));
    // SAFETY: the driver refuses it, which is the point; if it did not, this test's own memory
    // changes.
    let back = unsafe { sys::cuMemcpyDtoH_v2(span.start() as *mut _, device.at(), PAGE) };
    println!("a copy from the GPU into it: {back:?}");
    assert_ne!(back, sys::CUresult::CUDA_SUCCESS);
    registration.deregister().expect("registered");
}

#[test]
#[ignore = "needs a GPU"]
fn a_cache_of_64_buffers_registers_each_once() {
    let gpu = gpu();
    let areas: Vec<GuardedMapping> = (0..64).map(|_| GuardedMapping::new(MIB / PAGE)).collect();
    let budget = Budget::new(64).bytes(64 * MIB);
    for monitor in [MonitorMode::Explicit, MonitorMode::Strict] {
        let cache = RegistrationCache::new(gpu.clone(), budget, monitor).expect("with room");
        let device = GpuMemory::new(MIB);
        for _ in 0..10 {
            for area in &areas {
                let lease = cache.get(area.pointer(), MIB, Access::READ).expect("room for all");
                assert_eq!(lease.handle().device_address(area.at() + 5), Some(area.at() as u64 + 5));
                device.copy_in(area.at(), MIB);
                device.finish();
            }
        }
        let stats = cache.stats();
        assert_eq!((stats.misses, stats.hits), (64, 576));
    }
}

/// Maps 66 GiB of addresses over one GiB of memory, which takes two chunks. With a hole at the end
/// the registration fails.
#[test]
#[ignore = "needs a GPU"]
fn a_range_above_64_gib_is_registered_in_chunks_or_not_at_all() {
    const GIB: usize = 1 << 30;
    let gpu = gpu();
    // SAFETY: new addresses, over which only a new file is mapped; unmapped at the end.
    let base = unsafe {
        let file = libc::memfd_create(c"chunks".as_ptr(), libc::MFD_CLOEXEC);
        assert!(file >= 0 && libc::ftruncate(file, GIB as i64) == 0);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let base = libc::mmap(std::ptr::null_mut(), 67 * GIB, libc::PROT_NONE, flags, -1, 0) as usize;
        for at in (base..base + 66 * GIB).step_by(GIB) {
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            let got = libc::mmap(at as *mut _, GIB, libc::PROT_READ | libc::PROT_WRITE, flags, file, 0);
            assert_eq!(got as usize, at);
        }
        libc::close(file);
        base
    };
    // SAFETY: mapped above.
    unsafe { (base as *mut u8).write_bytes(3, GIB) };
    let began = Instant::now();
    let error =
        gpu.register(&span(base, 66 * GIB + PAGE).into(), Access::WRITE).expect_err("there is a hole");
    println!("66 GiB and a hole, after {:?}: {error}", began.elapsed());
    let began = Instant::now();
    let registration = Registration::new(&gpu, span(base, 66 * GIB), Access::WRITE).expect("all is mapped");
    println!("66 GiB in {} chunks: {:?}", registration.handle().chunks().len(), began.elapsed());
    let edge = registration.handle().chunks()[1].host.start();
    assert!(registration.handle().chunks().len() == 2 && edge.is_multiple_of(2 << 20));
    // A copy across the boundary of two chunks, in pieces.
    let device = GpuMemory::new(4 * MIB);
    for piece in registration.handle().pieces(span(edge - MIB, 2 * MIB)) {
        device.copy_in(piece.host.start(), piece.host.len());
    }
    device.finish();
    registration.deregister().expect("registered");
    // SAFETY: mapped above, and no longer registered.
    unsafe { libc::munmap(base as *mut _, 67 * GIB) };
}

/// Runs a kernel that writes to an unmapped address, in another process, since it breaks the
/// context of that process for good.
#[test]
#[ignore = "needs a GPU"]
fn a_broken_context_gives_errors_that_name_it() {
    const CHILD: &str = "HOSTBUF_TEST_BREAK_CONTEXT";
    if std::env::var_os(CHILD).is_none() {
        let name = "gpu::a_broken_context_gives_errors_that_name_it";
        let child = std::process::Command::new(std::env::current_exe().expect("this"))
            .args(["--ignored", "--exact", name, "--nocapture", "--test-threads=1"])
            .env(CHILD, "1")
            .output()
            .expect("it starts");
        print!("{}", String::from_utf8_lossy(&child.stdout));
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
        return;
    }
    let gpu = gpu();
    let area = GuardedMapping::new(4);
    let before = Registration::new(&gpu, span(area.at(), PAGE), Access::WRITE).expect("mapped");
    let device = GpuMemory::new(PAGE);
    let broken = device.break_context();
    println!("the kernel: {broken:?}");
    assert_ne!(broken, sys::CUresult::CUDA_SUCCESS);
    let later = Registration::new(&gpu, span(area.at() + PAGE, PAGE), Access::WRITE);
    println!(
        "registering afterwards: {}",
        later.as_ref().map_or_else(ToString::to_string, |_| "works".into())
    );
    let ended = before.deregister();
    println!("ending one from before: {}", ended.map_or_else(|e| e.to_string(), |()| "works".into()));
    let error = later.expect_err("the context is broken").to_string();
    assert!(error.contains("broke the context"), "{error}");
}

#[test]
#[ignore = "needs a GPU"]
fn a_forked_child_gets_an_error_and_ends_no_registration_of_its_parent() {
    let gpu = gpu();
    let area = GuardedMapping::new(2);
    let registration = Registration::new(&gpu, span(area.at(), PAGE), Access::WRITE).expect("mapped");
    // SAFETY: the child only asks, drops, and ends.
    match unsafe { fork() }.expect("a child") {
        ForkResult::Child => {
            let refused = gpu.register(&span(area.at() + PAGE, PAGE).into(), Access::WRITE);
            let well = matches!(&refused, Err(Error::Registration { why, .. }) if why.contains("fork"));
            drop(registration);
            drop(gpu);
            // SAFETY: runs nothing of the parent's.
            unsafe { libc::_exit(i32::from(!well)) }
        }
        ForkResult::Parent { child } => {
            assert!(matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0))));
        }
    }
    registration.deregister().expect("it is the parent's");
}
