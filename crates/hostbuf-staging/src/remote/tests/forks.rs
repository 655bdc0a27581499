//! Clients in a forked child.

#![allow(unsafe_code, reason = "forks a process that has threads")]

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use super::test_server::TestServer;
use super::*;

#[test]
fn a_child_gets_errors_and_the_parent_goes_on() {
    let server = TestServer::of_content(content(1000));
    for mode in [RequestMode::Easy, reactors(1, 1)] {
        let client = options().mode(mode).client().expect("valid options");
        let file = client.open(&server.url("/f")).expect("it is there");
        file.read(&mut [0; 10], 0).expect("nothing fails");
        // SAFETY: the child reads, drops and exits. It allocates, which glibc allows after a fork.
        match unsafe { fork() }.expect("a child") {
            ForkResult::Child => {
                let read = file.read(&mut [0; 10], 0);
                let is_forked = matches!(&read, Err(error) if error.problem == RemoteProblem::Forked);
                let opened = client.open("http://127.0.0.1/f");
                let is_refused = matches!(&opened, Err(error) if error.problem == RemoteProblem::Forked);
                drop((file, client));
                // SAFETY: ends the child without what the parent has to do at exit.
                unsafe { libc::_exit(i32::from(!(is_forked && is_refused))) };
            }
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None).expect("a child"), WaitStatus::Exited(child, 0));
            }
        }
        file.read(&mut [0; 10], 0).expect("nothing fails");
    }
}
