//! Signals that the parent of this process ignores, as `nohup` does.

use nix::sys::signal::Signal;

/// Returns whether this process ignores `signal`.
#[allow(unsafe_code, reason = "queries the action of a signal by a foreign function")]
pub(crate) fn is_ignored(signal: Signal) -> bool {
    // SAFETY: a null action only queries the current one; the all-zero `sigaction` is valid.
    let action = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let asked = libc::sigaction(signal as i32, std::ptr::null(), &raw mut action);
        (asked == 0).then_some(action.sa_sigaction)
    };
    action == Some(libc::SIG_IGN)
}
