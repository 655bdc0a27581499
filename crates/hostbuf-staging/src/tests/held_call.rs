//! A thread that is held in a system call.

#![allow(unsafe_code, reason = "restricts a thread by a filter of system calls")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc::channel;
use std::thread::{JoinHandle, spawn};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The system call in which a thread is held: its number, and the index and the lower 32 bits of an
/// argument if only some calls count.
pub(super) struct HeldCall {
    pub(super) number: libc::c_long,
    pub(super) argument: Option<(u32, u32)>,
}

/// A thread that is held in a system call, which the kernel has not begun.
pub(super) struct HeldThread<T> {
    listener: OwnedFd,
    call: libc::seccomp_notif,
    thread: JoinHandle<T>,
}

impl<T: Send + 'static> HeldThread<T> {
    /// Runs `work` in a thread, and waits until it makes the call.
    ///
    /// # Panics
    /// If it ends without the call.
    pub(super) fn start(call: HeldCall, work: impl FnOnce() -> T + Send + 'static) -> HeldThread<T> {
        let (send, receive) = channel();
        let thread = spawn(move || {
            send.send(listen(&call)).expect("the test waits for it");
            work()
        });
        let listener = receive.recv().expect("the thread sends it");
        let call = next_call(&listener).expect("the thread makes the call");
        HeldThread { listener, call, thread }
    }

    /// Lets the kernel do the call and all later ones, and returns the result of the thread.
    pub(super) fn resume(self) -> T {
        let HeldThread { listener, call, thread } = self;
        let mut held = Some(call);
        while let Some(call) = held {
            let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
            let mut response = libc::seccomp_notif_resp { id: call.id, val: 0, error: 0, flags };
            request(&listener, 1, &mut response);
            held = next_call(&listener);
        }
        thread.join().expect("no panic")
    }
}

/// Waits until the thread of a listener is held. Returns `None` if it has ended.
fn next_call(listener: &OwnedFd) -> Option<libc::seccomp_notif> {
    let mut waiting = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    poll(&mut waiting, PollTimeout::NONE).expect("it is open");
    if !waiting[0].revents().is_some_and(|found| found.contains(PollFlags::POLLIN)) {
        return None;
    }
    let data = libc::seccomp_data { nr: 0, arch: 0, instruction_pointer: 0, args: [0; 6] };
    let mut call = libc::seccomp_notif { id: 0, pid: 0, flags: 0, data };
    request(listener, 0, &mut call);
    Some(call)
}

/// Makes request `number` of a listener.
fn request<T>(listener: &OwnedFd, number: u64, argument: &mut T) {
    const READ_AND_WRITE: u64 = 3;
    let code = READ_AND_WRITE << 30 | (size_of::<T>() as u64) << 16 | u64::from(b'!') << 8 | number;
    // SAFETY: the argument has the kernel's layout for the request.
    let result =
        unsafe { libc::ioctl(listener.as_raw_fd(), code as libc::Ioctl, std::ptr::from_mut(argument)) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

/// Lets the kernel hold the calling thread in a call, and returns the listener.
fn listen(call: &HeldCall) -> OwnedFd {
    let statement = |code: u32, jumps: (u8, u8), k: u32| libc::sock_filter {
        code: code as u16,
        jt: jumps.0,
        jf: jumps.1,
        k,
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let compare = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    // The arguments are 64-bit numbers behind 16 bytes. Without one, the number is compared again.
    let (word, bits) = match call.argument {
        Some((index, bits)) => (16 + 8 * index, bits),
        None => (0, call.number as u32),
    };
    let filter = [
        statement(load, (0, 0), 0),
        statement(compare, (0, 3), call.number as u32),
        statement(load, (0, 0), word),
        statement(compare, (0, 1), bits),
        statement(answer, (0, 0), libc::SECCOMP_RET_USER_NOTIF),
        statement(answer, (0, 0), libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: restricts this thread only.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the program is a local variable, which the kernel copies.
    let listener = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    assert!(listener >= 0, "{}", io::Error::last_os_error());
    // SAFETY: a new descriptor.
    unsafe { OwnedFd::from_raw_fd(listener as i32) }
}
