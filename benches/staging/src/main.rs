//! The benchmarks of rings: see README.md.

mod comparing_sink;
mod file_reads;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["read", file] => file_reads::measure(file, 7),
        ["read", file, rounds] => match rounds.parse() {
            Ok(rounds) if rounds > 0 => file_reads::measure(file, rounds),
            _ => return usage(),
        },
        _ => return usage(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("hostbuf-bench-staging: {why}");
            ExitCode::from(2)
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: hostbuf-bench-staging read FILE [ROUNDS]");
    ExitCode::from(2)
}
