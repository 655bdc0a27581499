//! The command `hostbuf`.

use std::process::ExitCode;

use hostbuf_agent::stack;

fn main() -> ExitCode {
    if stack::is_enough() { hostbuf_cli::main() } else { stack::in_a_thread(hostbuf_cli::main) }
}
