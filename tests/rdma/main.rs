//! Two hosts with an RDMA device each, as two virtual machines, and the ranks that meet there over TCP.

mod channel;
#[path = "../fixtures/checks.rs"]
#[allow(unsafe_code, reason = "the programs in the machines count what they have, and end themselves")]
mod checks;
mod examples;
mod fabric;
mod leaks;
mod machines;
mod meeting;
mod pair;
mod stopping;
#[path = "../fixtures/tcp.rs"]
#[allow(dead_code, reason = "the programs in the machines use more of it")]
mod tcp;
mod tree;

use std::io::Write;

/// Says that something is not tested here, and why, also to whoever runs all tests.
fn skip(why: &str) {
    eprintln!("skipped: {why}");
    if let Some(path) = std::env::var_os("HOSTBUF_SKIPPED") {
        let file = std::fs::File::options().append(true).create(true).open(path);
        writeln!(file.expect("the list is writable"), "{why}").expect("the list is writable");
    }
}
