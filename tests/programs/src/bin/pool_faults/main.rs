//! Kills the clients and the broker of a pool at random instants, and checks what is left.
//!
//! ```text
//! pool_faults KIND ROUNDS [SEED]
//! ```
//!
//! | kind | in each round |
//! | --- | --- |
//! | `reader` | a reader is killed while it acquires and holds blocks; all blocks are free again |
//! | `stopped-reader` | a reader is stopped; the producer goes on with the blocks beyond its quota |
//! | `producer` | a producer is killed while it makes a segment or publishes; its memory is free again |
//! | `broker` | the broker is killed, and a new one takes over while both sides go on |
//! | `all` | the broker, the producer and the reader are killed together |
//! | `limit` | 16 clients ask for the last bytes at once; exactly as many get them as there are |
//!
//! Every page of every frame has a stamp, so a torn read is noticed. The program prints one line.
//! Exit status: 0 if everything held, 1 if something did not, with the seed of the round.

mod broken_promise;
mod broker_deaths;
mod child;
mod limit;
mod producer_deaths;
mod random;
mod reader_deaths;
mod stamps;
mod test_broker;
mod victims;

use std::process::ExitCode;

use random::RandomInstants;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["victim", role, rest @ ..] = &arguments[..] {
        return victims::run(role, rest);
    }
    let (kind, rounds, seed) = match arguments[..] {
        [kind, rounds] => (kind, rounds, "1"),
        [kind, rounds, seed] => (kind, rounds, seed),
        _ => return usage(),
    };
    let (Ok(rounds), Ok(seed)) = (rounds.parse::<u32>(), seed.parse::<u64>()) else { return usage() };
    let random = RandomInstants::new(seed);
    let result = match kind {
        "reader" => reader_deaths::kill(rounds, random),
        "stopped-reader" => reader_deaths::stop(rounds, random),
        "producer" => producer_deaths::kill(rounds, random),
        "broker" => broker_deaths::kill(rounds, random, false),
        "all" => broker_deaths::kill(rounds, random, true),
        "limit" => limit::ask_at_once(rounds),
        _ => return usage(),
    };
    match result {
        Ok(text) => {
            println!("{kind}: {rounds} rounds, {text}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("pool_faults: {kind} (seed {seed}): {why}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: pool_faults reader|stopped-reader|producer|broker|all|limit ROUNDS [SEED]");
    ExitCode::from(2)
}
