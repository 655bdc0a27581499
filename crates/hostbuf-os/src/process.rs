//! The state and the identity of processes, and the identity of the host.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Returns a descriptor that becomes readable once process `pid` has ended. In contrast to a
/// process number, it never refers to another process later.
///
/// # Errors
/// As `pidfd_open(2)`: `ESRCH` if there is no such process; `ENOSYS` before Linux 5.3.
#[allow(unsafe_code, reason = "calls the C library by its foreign functions")]
pub fn pidfd(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call accesses no memory; the returned descriptor is new.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Sends `signal` to the process behind a [`pidfd`].
///
/// # Errors
/// As `pidfd_send_signal(2)`: `ESRCH` if the process has ended.
#[allow(unsafe_code, reason = "calls the C library by its foreign functions")]
pub fn signal(process: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let no_info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: with a null pointer the kernel fills in the same information as for kill(2).
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), signal, no_info, 0) };
    if sent != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Formats a signal as `signal 9 (SIGKILL)`.
#[must_use]
pub fn signal_name(number: i32) -> String {
    match nix::sys::signal::Signal::try_from(number) {
        Ok(signal) => format!("signal {number} ({signal})"),
        Err(_) => format!("signal {number}"),
    }
}

/// Makes the kernel send `signal` to this process when the thread that created it ends: for direct
/// children of a main thread.
///
/// # Errors
/// As `prctl(2)`.
#[allow(unsafe_code, reason = "calls the C library by its foreign functions")]
pub fn die_with_parent(signal: i32) -> io::Result<()> {
    // SAFETY: PR_SET_PDEATHSIG takes a number.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Returns the start time of a process in clock ticks after boot. Together with its number it
/// identifies a process uniquely.
#[must_use]
pub fn start_time(pid: i32) -> Option<u64> {
    stat_field(pid, 19)?.parse().ok()
}

/// Returns the parent of a process.
#[must_use]
pub fn parent(pid: i32) -> Option<i32> {
    stat_field(pid, 1)?.parse().ok()
}

/// Returns the state of a process from `/proc/PID/stat`: `R`, `S`, `T` (stopped), `Z` (zombie) and
/// so on.
#[must_use]
pub fn state(pid: i32) -> Option<char> {
    stat_field(pid, 0)?.chars().next()
}

/// Returns whether a process has begun to end: the kernel closes its descriptors and frees its
/// memory, or its parent has not waited for it yet.
#[must_use]
pub fn is_ending(pid: i32) -> bool {
    // PF_EXITING of include/linux/sched.h.
    stat_field(pid, 6).and_then(|flags| flags.parse::<u64>().ok()).is_some_and(|flags| flags & 0x4 != 0)
}

/// Returns field `n` behind the name in `/proc/PID/stat` (0: the state).
fn stat_field(pid: i32, n: usize) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let behind = &stat[stat.rfind(')')? + 1..];
    behind.split_ascii_whitespace().nth(n).map(str::to_owned)
}

/// Returns the limit on the address space of a process in bytes (RLIMIT_AS), if there is one and
/// this process may read it.
#[must_use]
pub fn address_space_limit(pid: i32) -> Option<u64> {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// Returns the short name of a process (`comm`).
#[must_use]
pub fn name(pid: i32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).map_or_else(|_| "?".into(), |s| s.trim_end().into())
}

/// Returns a suffix for a message that names the limits that may have caused `error` at the start
/// of a process or thread. It is empty for other errors.
#[must_use]
pub fn start_remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EAGAIN) => " (raise `ulimit -u`, `-v` and `-d`, or the cgroup's pids.max)",
        _ => "",
    }
}

/// Returns the host's name, for messages.
#[must_use]
pub fn host_name() -> String {
    hostname::get().map_or_else(|_| "?".into(), |name| name.to_string_lossy().into_owned())
}

/// Returns a number that identifies this host. Two processes can share a buffer if they have the
/// same running kernel and the same network namespace: abstract sockets do not reach into another
/// namespace.
#[must_use]
pub fn host_identity() -> u64 {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let network = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let mut hash = xxhash_rust::xxh3::Xxh3::new();
    hash.update(&boot);
    hash.update(network.as_os_str().as_encoded_bytes());
    if boot.is_empty() {
        hash.update(host_name().as_bytes());
    }
    hash.digest()
}

/// Returns 128 random bits from the kernel.
///
/// # Errors
/// As `getrandom(2)`.
#[allow(unsafe_code, reason = "calls the C library by its foreign functions")]
pub fn random() -> io::Result<u128> {
    let mut bytes = [0u8; 16];
    // SAFETY: the pointer is valid for 16 bytes. The kernel returns up to 256 bytes completely once
    // its pool is initialised.
    let n = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if n != 16 {
        return Err(io::Error::last_os_error());
    }
    Ok(u128::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sys::wait::{Id, WaitPidFlag, waitid};
    use nix::unistd::Pid;

    use super::*;

    #[test]
    fn a_process_is_ending_until_its_parent_waits_for_it() {
        assert!(!is_ending(std::process::id() as i32));
        let mut child = Command::new("true").spawn().expect("it starts");
        let pid = child.id() as i32;
        let ended = waitid(Id::Pid(Pid::from_raw(pid)), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
        ended.expect("it is a child of this process");
        assert!(is_ending(pid));
        child.wait().expect("it is a child of this process");
        assert!(!is_ending(pid), "nobody has the number any more");
    }
}
