//! The system calls of a frame: none.

#![allow(unsafe_code, reason = "installs a program of the kernel's filter machine, and exits at once")]

use std::io::Read;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use hostbuf_pool::{
    ArrayLayout, Broker, BrokerOptions, ElementType, Pool, PoolMode, PoolOptions, ProducerOptions,
};
use nix::sys::eventfd::EventFd;

/// The variable that makes this program the process with the filter. Its value is `frames`, or
/// `call` for a process that makes a system call.
const ROLE: &str = "HOSTBUF_TEST_SYSTEM_CALLS";
const FRAMES: u32 = 100_000;
const BLOCKS: u32 = 4;
const BLOCK_BYTES: u64 = 4096;

/// Has the kernel end this process when the calling thread makes a system call, except those that
/// print a line and exit. Without a vDSO the clock is a system call, too.
fn forbid_system_calls() {
    let line = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let allowed = [libc::SYS_write, libc::SYS_exit_group, libc::SYS_clock_gettime];
    // The number of the call is at offset 0.
    let mut program = vec![line(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    for (at, call) in allowed.iter().enumerate() {
        let to_allow = (allowed.len() - at) as u8;
        program.push(line(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, to_allow, 0, *call as u32));
    }
    program.push(line(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_KILL_PROCESS));
    program.push(line(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the kernel copies the program, which ends in answers.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
    };
    assert!(installed, "{}", std::io::Error::last_os_error());
}

/// Passes frames from a producer to a reader, and ends this process.
fn pass_frames(role: &str) -> ! {
    let name = format!("hostbuf-pool-calls-{}", std::process::id());
    let mut broker = Broker::open(&BrokerOptions::new().name(&name)).expect("the name is free");
    let stop = Arc::new(EventFd::new().expect("an event descriptor"));
    std::thread::spawn(move || broker.serve(stop.as_fd()));
    let connect = |client| Pool::connect(PoolOptions::new(client).mode(PoolMode::Required).socket(&name));
    let (camera, viewer) = (connect("camera").expect("a broker"), connect("viewer").expect("a broker"));
    let options = ProducerOptions::new(BLOCK_BYTES, BLOCKS).retain(1).readers(8);
    let producer = camera.producer(&options).expect("there is memory");
    let layout = ArrayLayout::contiguous(ElementType::UInt8, &[BLOCK_BYTES]).expect("a layout");
    let pass = |number: u32| {
        let mut block = producer.take_timeout(Duration::from_secs(10)).expect("a free block");
        block.as_mut_slice()[..4].copy_from_slice(&number.to_ne_bytes());
        let block = viewer.acquire(&block.publish(layout).expect("it fits")).expect("it is there");
        assert_eq!(block.as_slice()[..4], number.to_ne_bytes());
    };
    // The first frames attach the segment, and give the allocator its memory.
    (0..100).for_each(pass);
    forbid_system_calls();
    (0..FRAMES).for_each(pass);
    if role == "call" {
        // SAFETY: reads a number.
        unsafe { libc::syscall(libc::SYS_getppid) };
    }
    let line = b"\n> passed\n";
    // SAFETY: the bytes are there; nothing of the process is used after its end.
    unsafe {
        libc::write(1, line.as_ptr().cast(), line.len());
        libc::_exit(0)
    }
}

/// Runs this test in a process of its own. Returns whether all frames were passed, and the signal
/// that ended the process.
fn run(role: &str) -> (bool, Option<i32>) {
    use std::os::unix::process::ExitStatusExt;
    let mut command = Command::new(std::env::current_exe().expect("this"));
    command.args(["--exact", "system_calls::a_frame_makes_no_system_call", "--nocapture"]);
    command.env(ROLE, role).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut text = String::new();
    child.stdout.take().expect("it is piped").read_to_string(&mut text).expect("text");
    let status = child.wait().expect("it ends");
    (text.contains("> passed"), status.signal())
}

#[test]
fn a_frame_makes_no_system_call() {
    if let Ok(role) = std::env::var(ROLE) {
        pass_frames(&role);
    }
    assert_eq!(run("frames"), (true, None));
    // The filter works.
    assert_eq!(run("call"), (false, Some(libc::SIGSYS)));
}
