//! `hostbuf-agent`: the agent of `hostbuf run` on one host, as a rank of an MPI job of its own. Built once for each
//! MPI.

#[macro_use]
mod complain;

#[path = "lib.rs"]
mod agent;
mod lookup;

use std::process::ExitCode;

fn main() -> ExitCode {
    agent::main(std::env::args().skip(1), agent::group::over_mpi)
}
