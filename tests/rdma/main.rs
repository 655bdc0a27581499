//! Two hosts with an RDMA device each, as two virtual machines, and the ranks that meet there over TCP.

mod bootstrap;
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

use hostbuf_tests::skip;
