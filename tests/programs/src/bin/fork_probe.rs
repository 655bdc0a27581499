//! Forks while another thread of the process is inside the library.
//!
//!   fork_probe attaching     a thread attaches to an agent that does not answer
//!   fork_probe registered    a thread asks for the registrations of `--register`

#![allow(unsafe_code, reason = "forks children")]

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use hostbuf::HostBuffer;
use hostbuf_os::socket;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("attaching") => attaching(),
        Some("registered") => registered(),
        other => panic!("{other:?}"),
    }
    println!("well");
}

/// Runs `work` in a child, which is killed if it hangs. Returns whether `work` returned true.
fn in_child(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs `work`, and ends.
    match unsafe { fork() }.expect("a child") {
        // SAFETY: as above; it runs nothing of the parent's afterwards.
        ForkResult::Child => unsafe {
            libc::alarm(20);
            libc::_exit(i32::from(!work()))
        },
        ForkResult::Parent { child } => matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0))),
    }
}

/// Checks that a child does not wait for the attachment of a thread that it does not have.
fn attaching() {
    let name = format!("hostbuf/fork-probe-{}", std::process::id());
    let listener = socket::listen_on(&name).expect("a free name");
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("HOSTBUF_JOB", &name) };
    let accept = || loop {
        if let Some(connection) = socket::accept(listener.as_fd()).expect("a connection") {
            return connection;
        }
    };
    std::thread::scope(|scope| {
        let attaching = scope.spawn(|| HostBuffer::attach().map(drop));
        let unanswered = accept();
        // The second connection is the child's; closing it ends the attachment with an error.
        let closing = scope.spawn(|| drop(accept()));
        let ended = in_child(|| HostBuffer::attach().is_err());
        if !ended {
            // Nobody has connected: this ends the thread.
            drop(socket::connect(&name, None));
        }
        closing.join().expect("no panic");
        drop(unanswered);
        assert!(attaching.join().expect("no panic").is_err());
        assert!(ended, "the child waits for a thread of its parent");
    });
}

/// Checks that the lock of the registrations is free in a child.
fn registered() {
    assert_eq!(hostbuf_programs::registered::registered().len(), 1, "the object is not loaded");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                hostbuf_programs::registered::registered();
            }
        });
        let well = (0..500)
            .take_while(|_| in_child(|| hostbuf_programs::registered::registered().len() == 1))
            .count();
        stop.store(true, Ordering::Relaxed);
        assert_eq!(well, 500);
    });
}
