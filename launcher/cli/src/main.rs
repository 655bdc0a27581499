//! The command `hostbuf`.

use std::process::ExitCode;

fn main() -> ExitCode {
    hostbuf_cli::main()
}
