//! The benchmarks behind `scripts/bench`. Every figure is a ratio of two values that are measured
//! side by side in one run, in turns. A subcommand measures and prints samples; `report` makes the
//! table of all samples.
//!
//! The benchmarks use MPI windows through rsmpi's foreign functions, since rsmpi has no other
//! interface to them. They access shared memory through raw pointers, as the measured programs do.

mod adopt;
mod agreement;
mod allocate;
mod attach;
mod cache;
mod chain;
mod expectation;
mod fixture;
mod languages;
mod launch;
mod lazy;
mod lookups;
mod memory;
mod node_copy;
mod node_cores;
mod other_caches;
#[cfg(feature = "rdma")]
mod perftest;
mod plot;
mod policy;
mod populate;
mod programs;
mod purger;
#[cfg(feature = "rdma")]
mod rdma;
mod replicate;
mod report;
mod rows;
mod sample;
mod scaling;
mod separate_processes;
mod topology;
mod unmapping;
mod window;

use std::process::ExitCode;

const USAGE: &str = "usage: hostbuf-bench SUBCOMMAND [ARGUMENT...], as scripts/bench calls it";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        // Programs that other benchmarks start.
        ["nothing"] => return ExitCode::SUCCESS,
        ["trivial"] => launch::trivial(false),
        ["stamps"] => launch::trivial(true),
        ["hold", kind, bytes] => memory::hold(kind, number(bytes)),
        ["attach-rank", key, count] => attach::rank(key, number(count)),
        ["attach-child"] => attach::child(),
        // Programs that the script starts.
        ["memory", hostbuf, pages, bytes, ranks] => {
            memory::compare(hostbuf, pages, number(bytes), number(ranks))
        }
        ["lookups", bytes, repeats, ref pages @ ..] => {
            lookups::compare(number(bytes), number(repeats), pages)
        }
        ["languages", repeats, c, ref python @ ..] => languages::compare(number(repeats), c, python),
        ["allocate", bytes, repeats, pages] => allocate::compare(number(bytes), number(repeats), pages),
        ["populate", bytes, repeats] => populate::compare(number(bytes), number(repeats)),
        ["launch", hostbuf, repeats, ref which @ ..] => launch::compare(hostbuf, number(repeats), which),
        ["launch-scale", hostbuf, repeats, place] => launch::scale(hostbuf, number(repeats), place),
        ["lazy", hostbuf, program, ranks, repeats] => {
            lazy::compare(hostbuf, program, number(ranks), number(repeats))
        }
        ["adopt", repeats, calls] => adopt::compare(number(repeats), number(calls)),
        ["attach", hostbuf, rounds, children] => attach::compare(hostbuf, number(rounds), number(children)),
        ["purger", pairs, repeats] => {
            purger::measure(number(pairs)).and_then(|()| purger::first_miss(number(repeats)))
        }
        ["scaling", sets, repeats, hits, "--without", why] => {
            scaling::measure(number(sets), number(repeats), number(hits), Err(why))
        }
        ["scaling", sets, repeats, hits, ucx] => {
            scaling::measure(number(sets), number(repeats), number(hits), Ok(ucx))
        }
        ["cache", repeats, hits, "--without", why, ref parts @ ..] => {
            cache::measure(number(repeats), number(hits), Err(why), parts)
        }
        ["cache", repeats, hits, ucx, ref parts @ ..] => {
            cache::measure(number(repeats), number(hits), Ok(ucx), parts)
        }
        ["agreement", most, scale] => agreement::simulate(number(most), number(scale)),
        ["agreement-planted", participants, jobs] => {
            agreement::planted(number(participants), number(jobs), None)
        }
        ["agreement-planted", participants, jobs, kind] => {
            agreement::planted(number(participants), number(jobs), Some(kind))
        }
        ["replicate", key, bytes, repeats, pages] => {
            replicate::compare(key, number(bytes), number(repeats), pages)
        }
        ["topology", hostbuf, lstopo, repeats, ref trees @ ..] => {
            topology::compare(hostbuf, lstopo, number(repeats), trees)
        }
        ["node-cores", root, bytes, repeats] => node_cores::compare(root, number(bytes), number(repeats)),
        ["node-copy", root, bytes, repeats] => node_copy::compare(root, number(bytes), number(repeats)),
        #[cfg(feature = "rdma")]
        ["rdma", repeats, volume] => rdma::compare(number(repeats), number(volume)),
        ["report", ref files @ ..] => return report::report(files),
        _ => Err(USAGE.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hostbuf-bench {}: {error}", words.join(" "));
            ExitCode::FAILURE
        }
    }
}

/// Parses an argument that is a number.
fn number<T: TryFrom<u64> + Default>(text: &str) -> T {
    text.parse::<u64>().ok().and_then(|n| T::try_from(n).ok()).unwrap_or_else(|| {
        eprintln!("hostbuf-bench: \"{text}\" is not a number that fits");
        std::process::exit(2);
    })
}
