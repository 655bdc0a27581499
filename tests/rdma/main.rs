//! Two hosts with an RDMA device each, as two virtual machines, whose ranks connect over TCP.

mod bootstrap;
mod channel;
mod examples;
mod fabric;
mod failing_checks;
mod leaks;
mod machines;
mod mirror;
mod pair;
mod tcp_collective;
mod tree;

use hostbuf_programs::{checks, tcp};
use hostbuf_tests::skip;
