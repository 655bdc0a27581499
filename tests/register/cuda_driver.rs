//! CudaHost with a fake driver (tests/fixtures/fake_cuda.c) that refuses the same registrations as
//! some real drivers. These tests build it, and the dynamic linker finds it first.

#![allow(unsafe_code, reason = "the tests map memory, fork and call the fake driver")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use hostbuf::job::Solo;
use hostbuf::register::Error;
use hostbuf::register::{Access, CudaHost, MonitorMode, Registrar, Registration, RegistrationCache};
use hostbuf::{BufferOptions, HostBuffer};
use hostbuf_cuda::Driver;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use crate::memory::PAGE;
use crate::span;

/// The variable that names the test's directory in the process that loads the driver.
const FOLDER: &str = "HOSTBUF_TEST_DRIVER";

/// Runs the test `name` again in a separate process with the driver and `variables`, removes its
/// directory and returns `None`. In that process it returns the test's directory.
fn with_driver(name: &str, variables: &[(&str, &str)]) -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return Some(folder.into());
    }
    let root = hostbuf_tests::root();
    let short = name.rsplit(':').next().unwrap_or(name);
    let folder = root.join(format!("target/tmp/{short}-{}-{}", variables.len(), std::process::id()));
    fs::create_dir_all(&folder).expect("target/ is writable");
    let built = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-O1", "-shared", "-fPIC", "-o"])
        .arg(folder.join("libcuda.so"))
        .arg(root.join("tests/fixtures/fake_cuda.c"))
        .status();
    assert!(built.expect("a C compiler built this test's crate").success());
    let outcome = Command::new(std::env::current_exe().expect("this"))
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env("LD_LIBRARY_PATH", &folder)
        .env(FOLDER, &folder)
        .envs(variables.iter().copied())
        .output();
    fs::remove_dir_all(&folder).expect("it was just made");
    let outcome = outcome.expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(outcome.status.success(), "{}{}", text(&outcome.stdout), text(&outcome.stderr));
    assert!(
        text(&outcome.stdout).contains("1 passed"),
        "the test has another name: {}",
        text(&outcome.stdout)
    );
    None
}

/// Returns a filled buffer that this process registers and freezes itself.
fn filled() -> HostBuffer {
    let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(1 << 20)).expect("1 MiB");
    buffer.initialize(|arena| arena.place(7u64)).expect("it has room");
    buffer
}

#[test]
fn a_frozen_buffer_is_registered_by_a_driver_that_can() {
    if with_driver("cuda_driver::a_frozen_buffer_is_registered_by_a_driver_that_can", &[]).is_none() {
        return;
    }
    let gpu = Arc::new(CudaHost::new(0).expect("the driver"));
    assert!(gpu.registers_read_only());
    assert_eq!(
        (gpu.stat_name().as_str(), CudaHost::probe().to_string().as_str()),
        ("cuda 0", "CUDA 13.0, Fake GPU")
    );
    let buffer = filled();
    buffer.freeze(&Solo).expect("no other process maps it");
    buffer.register(&gpu, .., Access::READ).expect("for reading");
}

#[test]
fn a_driver_that_cannot_register_a_frozen_buffer_gives_an_error_with_the_remedy() {
    let name = "cuda_driver::a_driver_that_cannot_register_a_frozen_buffer_gives_an_error_with_the_remedy";
    if with_driver(name, &[("FAKE_CUDA_READ_ONLY", "0")]).is_none() {
        return;
    }
    let gpu = Arc::new(CudaHost::new(0).expect("the driver"));
    assert!(!gpu.registers_read_only());
    assert_eq!(gpu.stat_name(), "cuda 0 (no read-only)");
    let probe = CudaHost::probe();
    assert!(probe.is_ready() && probe.to_string().contains("cannot register read-only memory"), "{probe}");
    let buffer = filled();
    // Before freezing, registration works.
    buffer
        .register(&gpu, .., Access::WRITE)
        .expect("it is mapped writable")
        .deregister()
        .expect("registered");
    buffer.register(&gpu, .., Access::READ).expect("it is mapped writable").deregister().expect("registered");
    buffer.freeze(&Solo).expect("nothing is registered");
    let error = buffer.register(&gpu, .., Access::READ).expect_err("the driver cannot");
    let text = error.to_string();
    assert!(matches!(error, hostbuf::Error::Register(Error::Registration { .. })), "{text}");
    let host = hostbuf_os::process::host_name();
    for part in ["cannot register read-only memory", "GPU 0", &host, "PinnedAlloc", "unfrozen"] {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn read_only_memory_and_holes_are_distinguished() {
    if with_driver("cuda_driver::read_only_memory_and_holes_are_distinguished", &[]).is_none() {
        return;
    }
    let gpu = Arc::new(CudaHost::new(0).expect("the driver"));
    // SAFETY: new memory of which only the addresses are used; it lives until the process ends.
    let base = unsafe {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let base = libc::mmap(std::ptr::null_mut(), 3 * PAGE, libc::PROT_READ, flags, -1, 0);
        assert!(base != libc::MAP_FAILED && libc::munmap(base.byte_add(2 * PAGE), PAGE) == 0);
        base as usize
    };
    let why = |length, access| {
        gpu.register(&span(base, length).into(), access)
            .map(drop)
            .expect_err("the driver refuses")
            .to_string()
    };
    let writing = why(2 * PAGE, Access::WRITE);
    assert!(writing.contains("mapped read-only: request access for reading only"), "{writing}");
    let hole = why(3 * PAGE, Access::READ);
    assert!(hole.contains(&format!("nothing is mapped at {:#x}", base + 2 * PAGE)), "{hole}");
    drop(Registration::new(&gpu, span(base, 2 * PAGE), Access::READ).expect("for reading"));
}

#[test]
fn the_driver_is_loaded_and_initialised_when_it_is_asked_for() {
    let name = "cuda_driver::the_driver_is_loaded_and_initialised_when_it_is_asked_for";
    if with_driver(name, &[]).is_none() {
        return;
    }
    let is_loaded = || fs::read_to_string("/proc/self/maps").expect("readable").contains("libcuda");
    // A cache, and a device that is no GPU.
    let mlock = Arc::new(hostbuf::register::Mlock::new());
    let budget = hostbuf::register::Budget::new(1);
    RegistrationCache::new(mlock, budget, MonitorMode::Explicit).expect("with room");
    assert!(!is_loaded());
    let driver = Driver::load().expect("the fake driver");
    assert!(is_loaded());
    assert_eq!(driver.version(), Ok((13, 0)));
    let error = driver.gpu_count().expect_err("it is not initialised").to_string();
    assert!(error.contains("cuDeviceGetCount returned CUDA_ERROR_NOT_INITIALIZED (3)"), "{error}");
    assert_eq!(Driver::find().and_then(Driver::gpu_count), Ok(1));
}

/// Runs the tests that need a GPU and that the fake driver supports.
#[test]
fn copies_and_shared_memory_work_as_on_a_gpu() {
    let name = "cuda_driver::copies_and_shared_memory_work_as_on_a_gpu";
    if with_driver(name, &[]).is_none() {
        return;
    }
    let outcome = Command::new(std::env::current_exe().expect("this"))
        .args([
            "--ignored",
            "--nocapture",
            "--test-threads=1",
            "gpu::streams::",
            "gpu::shared_memory::",
            "gpu::legacy_handles::",
        ])
        .output()
        .expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&outcome.stdout), text(&outcome.stderr));
    assert!(outcome.status.success(), "{out}{err}");
    assert!(out.contains(" 6 passed"), "{out}");
}

#[test]
fn processes_that_register_the_same_pages_at_once_retry_in_turn() {
    const PROCESSES: usize = 6;
    let name = "cuda_driver::processes_that_register_the_same_pages_at_once_retry_in_turn";
    let busy = std::env::temp_dir().join(format!("hostbuf-busy-{}", std::process::id()));
    let Some(folder) = with_driver(name, &[("FAKE_CUDA_BUSY", busy.to_str().expect("UTF-8"))]) else {
        return;
    };
    assert!(folder.join("libcuda.so").exists());
    // SAFETY: new memory that lives until the process ends.
    let base = unsafe {
        let (rw, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        libc::mmap(std::ptr::null_mut(), PAGE, rw, flags, -1, 0)
    };
    assert_ne!(base, libc::MAP_FAILED);
    // All processes begin when the last writing end of this pipe is closed.
    let (start, go) = std::io::pipe().expect("a pipe");
    let children: Vec<_> = (0..PROCESSES)
        // SAFETY: the child registers and ends; this process has no other thread that could hold a
        // lock.
        .map(|_| match unsafe { fork() }.expect("a child") {
            ForkResult::Parent { child } => child,
            ForkResult::Child => {
                // SAFETY: the child's own copy, which it does not use.
                unsafe { libc::close(std::os::fd::AsRawFd::as_raw_fd(&go)) };
                let gpu = Arc::new(CudaHost::new(0).expect("the driver"));
                std::io::Read::read(&mut &start, &mut [0]).expect("a pipe");
                let made = Registration::new(&gpu, span(base as usize, PAGE), Access::WRITE);
                if let Err(error) = &made {
                    eprintln!("{error}");
                }
                // SAFETY: _exit runs no destructors or exit handlers of the parent.
                unsafe { libc::_exit(i32::from(made.is_err())) }
            }
        })
        .collect();
    drop(go);
    let ends: Vec<_> = children.into_iter().map(|child| waitpid(child, None).expect("a child")).collect();
    assert!(ends.iter().all(|end| matches!(end, WaitStatus::Exited(_, 0))), "{ends:?}");
}
