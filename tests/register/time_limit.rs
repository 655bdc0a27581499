//! A limit on the time of calls that only a signal can end.

use std::sync::mpsc;
use std::time::Duration;

/// Ends the test if a call waits forever in the kernel: only a signal can end such a call.
pub(crate) fn within(what: &'static str, time: Duration, act: impl FnOnce()) {
    let (done, is_done) = mpsc::channel::<()>();
    let guard = std::thread::spawn(move || {
        if is_done.recv_timeout(time) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("{what}: it hangs");
            std::process::abort();
        }
    });
    act();
    drop(done);
    guard.join().unwrap();
}
