//! Counts the system calls of threads, by a seccomp filter whose listener lets each call go on.

#![allow(unsafe_code, reason = "restricts a thread, and answers the kernel, by system calls")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// More than the number of any system call.
const CALLS: usize = 1024;

/// A counter of the system calls of a thread, and of those that it makes.
pub(super) struct CallCounter {
    /// The descriptor by which the kernel reports calls, or the reason why there is none.
    listener: OnceLock<io::Result<OwnedFd>>,
    /// True while calls are counted.
    is_counting: AtomicBool,
    counts: [AtomicU64; CALLS],
}

impl CallCounter {
    pub(super) fn new() -> CallCounter {
        let counts = [const { AtomicU64::new(0) }; CALLS];
        CallCounter { listener: OnceLock::new(), is_counting: AtomicBool::new(false), counts }
    }

    /// Reports the calls of this thread from now on, and those of the threads that it makes, to the
    /// thread in [`serve`](CallCounter::serve). Each call waits for its answer.
    pub(super) fn report_this_thread(&self) {
        let _ = self.listener.set(install_filter());
    }

    /// Lets the calls go on, until the threads that are reported have ended. The thread makes no
    /// allocation: another one may have the allocator's lock, and wait for an answer.
    ///
    /// # Panics
    /// If the kernel permits no listener.
    pub(super) fn serve(&self) {
        let listener = loop {
            match self.listener.get() {
                Some(Ok(listener)) => break listener,
                Some(Err(error)) => panic!("a seccomp filter with a listener: {error}"),
                None => std::thread::yield_now(),
            }
        };
        loop {
            let mut polled = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut polled, PollTimeout::NONE);
            let events = polled[0].revents().unwrap_or(PollFlags::empty());
            if events.contains(PollFlags::POLLIN) {
                self.answer(listener);
            } else if !events.is_empty() {
                return;
            }
        }
    }

    /// Counts a call, and lets it go on.
    fn answer(&self, listener: &OwnedFd) {
        // SAFETY: zeros are valid values of the C structure.
        let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes to a local variable with its layout.
        if unsafe { libc::ioctl(listener.as_raw_fd(), request::<libc::seccomp_notif>(0), &raw mut call) } < 0
        {
            // The thread was interrupted, and makes the call again.
            return;
        }
        if self.is_counting.load(Ordering::SeqCst) {
            self.counts[call.data.nr as usize].fetch_add(1, Ordering::Relaxed);
        }
        let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        let mut answer = libc::seccomp_notif_resp { id: call.id, val: 0, error: 0, flags };
        // SAFETY: the kernel reads a local variable with its layout.
        unsafe { libc::ioctl(listener.as_raw_fd(), request::<libc::seccomp_notif_resp>(1), &raw mut answer) };
    }

    /// Sets whether calls are counted.
    pub(super) fn count(&self, is_counting: bool) {
        self.is_counting.store(is_counting, Ordering::SeqCst);
    }

    /// Returns the number of each call that was made, with its count. Without the vDSO the clock is
    /// a system call, too, and is left out.
    pub(super) fn calls(&self) -> Vec<(libc::c_long, u64)> {
        let counts = (0..).zip(&self.counts).map(|(number, count)| (number, count.load(Ordering::Relaxed)));
        counts.filter(|&(number, count)| count > 0 && number != libc::SYS_clock_gettime).collect()
    }
}

/// Returns the number of an ioctl(2) that reads and writes a `T` (`SECCOMP_IOWR`).
fn request<T>(number: libc::Ioctl) -> libc::Ioctl {
    3 << 30 | (size_of::<T>() as libc::Ioctl) << 16 | libc::Ioctl::from(b'!') << 8 | number
}

/// Installs the filter.
///
/// # Errors
/// The kernel's: it has had such filters since Linux 5.5.
fn install_filter() -> io::Result<OwnedFd> {
    let notify = libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: libc::SECCOMP_RET_USER_NOTIF,
    };
    let program = libc::sock_fprog { len: 1, filter: (&raw const notify).cast_mut() };
    // SAFETY: restricts this thread only.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let (mode, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
    // SAFETY: the program is a local variable, which the kernel copies.
    let listener = unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) };
    if listener < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has made the descriptor for this call.
    Ok(unsafe { OwnedFd::from_raw_fd(listener as i32) })
}
