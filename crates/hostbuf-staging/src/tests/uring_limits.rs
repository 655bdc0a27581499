//! Processes that may not use io_uring, or may not lock memory, and children.

#![allow(unsafe_code, reason = "restricts a thread or a process by system calls")]

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use nix::sys::resource::{Resource, setrlimit};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use super::byte_source::{SLOT, pattern, ring, target};
use super::child_process::in_child_process;
use super::disk_file::DiskFile;
use crate::{
    Backend, File, FileOptions, HostMemory, ReadAt, Ring, RingOptions, SimulatedDevice, TransferError,
    drop_cached_pages,
};

/// Lets the kernel refuse io_uring_setup(2) with EPERM to the calling thread and to the threads
/// that it makes.
fn forbid_io_uring() {
    let statement = |code: u32, jumps: (u8, u8), k: u32| libc::sock_filter {
        code: code as u16,
        jt: jumps.0,
        jf: jumps.1,
        k,
    };
    let filter = [
        // The number of the system call.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, (0, 0), 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, (0, 1), libc::SYS_io_uring_setup as u32),
        statement(libc::BPF_RET | libc::BPF_K, (0, 0), libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET | libc::BPF_K, (0, 0), libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: restricts this thread only.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the program is a local variable, which the kernel copies.
    let failed = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(failed, 0, "{}", io::Error::last_os_error());
}

/// Takes the capability to exceed the limit of locked memory from the calling thread.
fn drop_lock_capability() {
    const VERSION_3: u32 = 0x2008_0522;
    const CAP_IPC_LOCK: u32 = 14;
    let header = [VERSION_3, 0];
    // Three words for each half: effective, permitted, inheritable.
    let mut sets = [0u32; 6];
    // SAFETY: both are local variables with the kernel's layout.
    assert_eq!(unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()) }, 0);
    sets[0] &= !(1 << CAP_IPC_LOCK);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) }, 0);
}

/// Returns the number of bytes that this process has pinned.
fn pinned() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).expect("Linux 3.2 has it");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
}

#[test]
fn a_process_without_io_uring_says_why() {
    let content = pattern(4 * SLOT, 1);
    let disk = DiskFile::new("forbidden", &content);
    let early = disk.open(Backend::Uring);
    drop_cached_pages(&std::fs::File::open(&disk.0).unwrap()).unwrap();
    let forbidden =
        "io_uring is forbidden (sysctl kernel.io_uring_disabled, or seccomp): Operation not permitted";
    std::thread::scope(|scope| {
        let restricted = scope.spawn(|| {
            forbid_io_uring();
            let error = FileOptions::new().backend(Backend::Uring).open(&disk.0).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::Unsupported);
            assert!(error.to_string().starts_with(&format!("{}: {forbidden}", disk.0.display())), "{error}");
            let auto = File::open(&disk.0).unwrap();
            let choice = auto.backend();
            if disk.direct().is_some() && !choice.why.contains("does not report") {
                assert_eq!(choice.backend, Backend::Direct);
                assert!(choice.why.contains(forbidden), "{choice}");
            }
            let ring = ring(SimulatedDevice::new(), 2, 2);
            let (memory, to) = target(content.len());
            ring.read(Arc::new(auto), 0, to).wait().unwrap();
            assert!(memory.content() == content);
            // A file that was opened before the filter.
            let Some(early) = early else { return };
            let (_memory, to) = target(content.len());
            let error = ring.read(Arc::new(early), 0, to).wait().unwrap_err();
            assert!(
                matches!(error, TransferError::Io { .. }) && error.to_string().contains(forbidden),
                "{error}"
            );
        });
        restricted.join().unwrap();
    });
}

/// Lets the kernel give this process no further descriptor.
fn forbid_descriptors() {
    setrlimit(Resource::RLIMIT_NOFILE, 0, 0).unwrap();
}

#[test]
fn a_process_without_descriptors_reads_without_io_uring() {
    const NAME: &str = "tests::uring_limits::a_process_without_descriptors_reads_without_io_uring";
    if !in_child_process(NAME) {
        return;
    }
    let content = pattern(40 * SLOT + 77, 6);
    let disk = DiskFile::new("descriptors", &content);
    let Some(requested) = disk.open(Backend::Uring).map(Arc::new) else { return };
    drop_cached_pages(requested.as_std()).unwrap();
    let auto = Arc::new(FileOptions::new().write(true).open(&disk.0).unwrap());
    if auto.backend().backend != Backend::Uring {
        eprintln!("skipped: {}", auto.backend());
        return;
    }
    let ring = ring(SimulatedDevice::new(), 4, 2);
    let (memory, to) = target(content.len());
    forbid_descriptors();
    ring.read(auto.clone(), 0, to.clone()).wait().unwrap();
    assert!(memory.content() == content);
    let choice = auto.backend();
    let refusal = "io_uring needs a file descriptor for each thread, and the limit of this process is 0 \
                   (RLIMIT_NOFILE; raise ulimit -n): Too many open files (os error 24)";
    assert_eq!(choice.backend, Backend::Direct);
    assert!(choice.why.ends_with(&format!("it is in the page cache, and {refusal}")), "{choice}");
    memory.fill(&pattern(content.len(), 7));
    ring.write(to.clone(), auto, 0).wait().unwrap();
    let mut written = vec![0; content.len()];
    requested.as_std().read_exact_at(&mut written, 0).unwrap();
    assert!(written == pattern(content.len(), 7));
    // A backend that was requested is not replaced.
    let error = ring.read(requested.clone(), 0, to).wait().unwrap_err();
    assert!(matches!(error, TransferError::Io { .. }) && error.to_string().contains(refusal), "{error}");
    assert_eq!(requested.backend().backend, Backend::Uring);
}

#[test]
fn slots_are_pinned_until_the_ring_ends() {
    if !in_child_process("tests::uring_limits::slots_are_pinned_until_the_ring_ends") {
        return;
    }
    let content = pattern(40 * SLOT, 2);
    let disk = DiskFile::new("pinned", &content);
    let Some(file) = disk.open(Backend::Uring).map(Arc::new) else { return };
    let before = pinned();
    for round in 1..=3 {
        let workers = 2;
        let ring = ring(SimulatedDevice::new(), 8, workers);
        let mut rounds = 0;
        // Each thread registers the slots when it first reads.
        while pinned() < before + workers * 8 * SLOT {
            let (memory, to) = target(content.len());
            ring.read(file.clone(), 0, to).wait().unwrap();
            assert!(memory.content() == content);
            rounds += 1;
            let choice = file.backend();
            if choice.why.contains("not fixed buffers") {
                eprintln!("skipped: {choice}");
                return;
            }
            assert!(rounds < 10_000, "{} bytes of round {round} are pinned", pinned());
        }
        assert_eq!(pinned(), before + workers * 8 * SLOT);
        drop(ring);
        assert_eq!(pinned(), before, "after round {round}");
    }
}

#[test]
fn slots_beyond_the_limit_of_locked_memory_are_read_without_fixed_buffers() {
    if !in_child_process(
        "tests::uring_limits::slots_beyond_the_limit_of_locked_memory_are_read_without_fixed_buffers",
    ) {
        return;
    }
    drop_lock_capability();
    setrlimit(Resource::RLIMIT_MEMLOCK, 0, 0).unwrap();
    let content = pattern(40 * SLOT + 1, 3);
    let disk = DiskFile::new("limit", &content);
    let Some(file) = disk.open(Backend::Uring).map(Arc::new) else { return };
    assert!(!file.backend().why.contains("fixed"), "nothing is registered yet");
    let (memory, to) = target(content.len());
    ring(SimulatedDevice::new(), 4, 2).read(file.clone(), 0, to).wait().unwrap();
    assert!(memory.content() == content);
    let why = file.backend().why;
    assert!(
        why.contains("the slots of a ring are not fixed buffers: io_uring cannot register 256 KiB"),
        "{why}"
    );
    assert!(why.ends_with("the limit of locked memory is 0 bytes, raise ulimit -l"), "{why}");
}

#[test]
fn a_forked_child_makes_an_io_uring_of_its_own() {
    if !in_child_process("tests::uring_limits::a_forked_child_makes_an_io_uring_of_its_own") {
        return;
    }
    let content = pattern(SLOT, 4);
    let disk = DiskFile::new("forked", &content);
    let Some(file) = disk.open(Backend::Uring) else { return };
    let mut buffer = vec![0; SLOT];
    let mut is_equal =
        || matches!(file.read_at(&mut buffer, 0), Ok(bytes) if buffer[..bytes] == content[..bytes]);
    assert!(is_equal());
    // SAFETY: the child reads a file and ends.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let status = if is_equal() { 0 } else { 1 };
            // SAFETY: ends the child without the destructors of the parent.
            unsafe { libc::_exit(status) };
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
    assert!(is_equal());
}

#[test]
fn anonymous_memory_is_registered() {
    let content = pattern(20 * SLOT, 5);
    let disk = DiskFile::new("buffers", &content);
    let Some(file) = disk.open(Backend::Uring).map(Arc::new) else { return };
    // Anonymous memory, and one piece for each slot.
    let options = RingOptions::new().slots(3).slot_bytes(SLOT).piece_bytes(SLOT).workers(2);
    let ring = Ring::new(SimulatedDevice::new(), options, HostMemory::new(3 * SLOT)).unwrap();
    let (memory, to) = target(content.len());
    ring.read(file.clone(), 0, to).wait().unwrap();
    assert!(memory.content() == content);
    let why = file.backend().why;
    assert!(why == "as requested" || why.contains("raise ulimit -l"), "{why}");
}
