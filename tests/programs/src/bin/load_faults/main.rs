//! Cuts sources, cancels and drops transfers, and kills ranks that load, at random instants, and
//! checks what is left.
//!
//! ```text
//! load_faults KIND ROUNDS [SEED]
//! ```
//!
//! | kind | in each round |
//! | --- | --- |
//! | `transfers` | transfers of a ring with sources, sinks and files that are cut or fail, and a device that refuses, fails, delays, hangs and is lost; they are cancelled and dropped, also with their ring |
//! | `ranks` | three processes load a file into the buffer that they share; one is killed, or the file is cut, at a random instant |
//!
//! A transfer or a load that has succeeded has the right bytes, and one that has failed has a
//! reason that fits. After each round this process has as many descriptors, threads, mappings of
//! hostbuf's memory files, pinned and locked pages, registrations, and buffers of transfers as
//! before, and no process is left. In eight or nine rounds of a run a device is lost: a ring that
//! it then copies for keeps its memory registered, and what its slots have in flight. The program
//! prints one line. Exit status: 0 if everything held, 1 if something did not, or a round took more
//! than two minutes, with the number of the round and its seed.

mod counted_locks;
mod counted_memory;
mod rank_rounds;
mod round_limit;
mod transfer_rounds;
mod unsteady_bytes;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["rank", number, leader, path] = arguments[..] {
        return rank_rounds::join(number, leader, path);
    }
    let (kind, rounds, seed) = match arguments[..] {
        [kind, rounds] => (kind, rounds, "1"),
        [kind, rounds, seed] => (kind, rounds, seed),
        _ => return usage(),
    };
    let (Ok(rounds), Ok(seed)) = (rounds.parse::<u64>(), seed.parse::<u64>()) else { return usage() };
    let result = match kind {
        "transfers" => transfer_rounds::run(rounds, seed),
        "ranks" => rank_rounds::run(rounds, seed),
        _ => return usage(),
    };
    match result {
        Ok(text) => {
            println!("{kind}: {rounds} rounds with seed {seed}, {text}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("load_faults: {kind} (seed {seed}): {why}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: load_faults transfers|ranks ROUNDS [SEED]");
    ExitCode::from(2)
}
