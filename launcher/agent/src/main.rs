//! `hostbuf-agent`: the agent of `hostbuf run` on one host, a rank of a separate MPI job. It is
//! built for one MPI, or for the binary interface of several.

use std::process::ExitCode;

use hostbuf_agent::stack;

fn main() -> ExitCode {
    let agent = || hostbuf_agent::main(std::env::args().skip(1), hostbuf_agent::group::over_mpi);
    if stack::is_enough() { agent() } else { stack::in_a_thread(agent) }
}
