//! The end of a process that cannot start its program.

/// Ends the process at once. The program's own functions for its end do not run, since the program
/// has not begun.
#[allow(unsafe_code, reason = "ends the process without its destructors")]
pub(crate) fn exit_process(status: i32) -> ! {
    // SAFETY: the call ends the process.
    unsafe { libc::_exit(status) }
}
