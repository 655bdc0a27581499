//! Checks the collective operations over MPI's standard ABI: each rank of a job of an MPI with the
//! ABI runs this program. It prints "ok RANK of SIZE", or ends with status 1 and the reason.

use std::process::ExitCode;

use hostbuf::job::{Collective, Reduce};
use hostbuf_agent::group;
use hostbuf_programs::checks::{Outcome, expect, text};

fn main() -> ExitCode {
    match run() {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            println!("FAILED {why}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome {
    let (world, _mpi) = group::over_standard_abi().map_err(text)?;
    check(&*world)?;
    // The order of the ranks stays, and each part is a group of its own.
    let parity = world.rank() % 2;
    let part = world.split(parity).map_err(text)?;
    let expected = (world.rank() / 2, (world.size() + 1 - parity) / 2);
    expect((part.rank(), part.size()) == expected, format!("rank {} of {}", part.rank(), part.size()))?;
    check(&*part)?;
    Ok(format!("ok {} of {}", world.rank(), world.size()))
}

/// Returns the words of a rank, with the bounds of signed and of unsigned ones.
fn words_of(rank: usize) -> Vec<u64> {
    let word = rank as u64;
    vec![5 + word, u64::MAX - word, 1 << 63, (1 << 63) - word, if rank == 0 { 5 } else { u64::MAX }, 0]
}

fn check(group: &dyn Collective) -> Result<(), String> {
    let (rank, size) = (group.rank(), group.size());
    for how in [Reduce::Min, Reduce::Max, Reduce::Sum, Reduce::And] {
        let mut words = words_of(rank);
        group.all_reduce(&mut words, how).map_err(text)?;
        let combine = |all: Vec<u64>, other: Vec<u64>| {
            all.into_iter().zip(other).map(|(a, b)| how.combine(a, b)).collect()
        };
        let expected = (0..size).map(words_of).reduce(combine).ok_or("no rank")?;
        expect(words == expected, format!("rank {rank}, {how:?}: {words:x?} instead of {expected:x?}"))?;
    }
    let mut all = vec![0; 3 * size];
    group.all_gather(&[rank as u8; 3], &mut all).map_err(text)?;
    let expected: Vec<u8> = (0..size).flat_map(|rank| [rank as u8; 3]).collect();
    expect(all == expected, format!("rank {rank} gathered {all:?}"))?;
    let pattern: Vec<u8> = (0..100_000).map(|at| (at % 251) as u8).collect();
    let mut bytes = if rank == size - 1 { pattern.clone() } else { vec![0; pattern.len()] };
    group.broadcast(&mut bytes, size - 1).map_err(text)?;
    expect(bytes == pattern, format!("rank {rank} received other bytes"))
}
