//! `hostbuf-agent`: the agent of `hostbuf run` on one host, as a rank of an MPI job of its own. Built once for each
//! MPI.

use std::process::ExitCode;

fn main() -> ExitCode {
    hostbuf_agent::main(std::env::args().skip(1), hostbuf_agent::group::over_mpi)
}
