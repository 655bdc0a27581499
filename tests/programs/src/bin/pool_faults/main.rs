//! Kills the clients and the broker of a pool at random instants, and checks what is left.
//!
//! ```text
//! pool_faults KIND ROUNDS [SEED [SECONDS]]
//! ```
//!
//! | kind | in each round |
//! | --- | --- |
//! | `reader` | a reader is killed while it acquires and holds blocks; all blocks are free again |
//! | `stopped-reader` | a reader is stopped; the producer goes on with the blocks beyond its quota |
//! | `tight` | a reader that only acquires and releases, and a producer that only takes and publishes, are killed |
//! | `producer` | a producer is killed while it makes a segment or publishes; its memory is free again |
//! | `broker` | the broker is killed, and a new one takes over while both sides go on |
//! | `all` | the producer and the reader are killed with the broker, or while its successor takes over or dies |
//! | `mirror` | a sender, a receiver or a broker of a mirror is killed; the copy of each frame is whole |
//! | `granted` | a client that has asked for the last bytes is stopped, and the broker is killed; another client asks its successor |
//! | `awaited` | a client is stopped, and the broker is killed; its successor grants nothing until the client goes on |
//! | `limit` | 64 clients ask for the last bytes at once; exactly as many get them as there are |
//! | `paused` | a reader, a producer or the broker is stopped for at least SECONDS (default 0), and goes on |
//! | `flipped` | each byte of a table, of its rows and of a token changes while they are in use |
//! | `garbage` | a client sends garbage, other clients' messages, and descriptors |
//! | `crowd` | one connection; after the rounds as many at once as the broker has descriptors for |
//! | `forked` | a reader and a producer with a forked child each are killed; nothing is kept by the children |
//! | `trespass` | a reader writes to its block, and ends by SIGSEGV; the block is as it was |
//!
//! Every page of every frame has a stamp, so a torn read is noticed. The program prints one line.
//! Exit status: 0 if everything held, 1 if something did not, with the seed of the round.

mod broken_promise;
mod broker_deaths;
mod child;
mod crowds;
mod flipped_bytes;
mod forked_children;
mod garbage_messages;
mod hello_answer;
mod limit;
mod mirror_deaths;
mod paused_processes;
mod producer_deaths;
mod reader_deaths;
mod recovery;
mod stamps;
mod step_roles;
mod test_broker;
mod tight_loops;
mod trespass;
mod victims;

use std::process::ExitCode;
use std::time::Duration;

use hostbuf_programs::random::RandomInstants;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["victim", role, rest @ ..] = &arguments[..] {
        return victims::run(role, rest);
    }
    let (kind, rounds, seed, seconds) = match arguments[..] {
        [kind, rounds] => (kind, rounds, "1", "0"),
        [kind, rounds, seed] => (kind, rounds, seed, "0"),
        ["paused", rounds, seed, seconds] => ("paused", rounds, seed, seconds),
        _ => return usage(),
    };
    let numbers = (rounds.parse::<u32>(), seed.parse::<u64>(), seconds.parse::<u64>());
    let (Ok(rounds), Ok(seed), Ok(seconds)) = numbers else { return usage() };
    let random = RandomInstants::new(seed);
    let result = match kind {
        "reader" => reader_deaths::kill(rounds, random),
        "stopped-reader" => reader_deaths::stop(rounds, random),
        "tight" => tight_loops::kill(rounds, random),
        "producer" => producer_deaths::kill(rounds, random),
        "broker" => broker_deaths::kill(rounds, random, false),
        "all" => broker_deaths::kill(rounds, random, true),
        "mirror" => mirror_deaths::kill(rounds, random),
        "granted" => recovery::ask_twice(rounds, random),
        "awaited" => recovery::wait_for_client(rounds),
        "limit" => limit::ask_at_once(rounds),
        "paused" => paused_processes::pause(rounds, random, Duration::from_secs(seconds)),
        "flipped" => flipped_bytes::flip(rounds, random),
        "garbage" => garbage_messages::send(rounds, random),
        "crowd" => crowds::connect(rounds, random),
        "forked" => forked_children::kill_parents(rounds, random),
        "trespass" => trespass::write(rounds),
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
    eprintln!(
        "usage: pool_faults reader|stopped-reader|tight|producer|broker|all|mirror|granted|awaited|limit|paused|flipped|garbage|crowd|forked|trespass \
         ROUNDS [SEED [SECONDS]]"
    );
    ExitCode::from(2)
}
