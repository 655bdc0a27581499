//! `hostbuf-agent-mpi-abi`: the agent of `hostbuf run` on one host, a rank of a separate MPI job.
//! It serves every MPI with the standard ABI of MPI 5.

use std::process::ExitCode;

use hostbuf_agent::{group, stack};

fn main() -> ExitCode {
    let agent = || hostbuf_agent::main(std::env::args().skip(1), group::over_standard_abi);
    if stack::is_enough() { agent() } else { stack::in_a_thread(agent) }
}
