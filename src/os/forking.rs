//! Locks that a forked child needs: another thread may hold one at the moment of the fork, and the child has no such thread.

#![allow(unsafe_code)]

/// Calls `before` in a thread that forks, and `after` in it and in its child when it has forked: so that a lock taken in
/// between is nobody else's. For the life of the process; a child that was made without the C library's `fork` is on its own.
pub fn around(before: extern "C" fn(), after: extern "C" fn()) {
    // SAFETY: both stay, as functions of this library do.
    let refused = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
    if refused != 0 {
        tracing::warn!(refused, "a child that is forked from several threads may hang when it uses hostbuf");
    }
}
