//! A rank that makes the group of its host's ranks several times. `member_rounds WHAT DIR` performs
//! the step WHAT and prints one line; files in DIR order the steps of the ranks.

use std::path::PathBuf;
use std::time::Duration;

use hostbuf::Result;
use hostbuf::job::{Collective, Local};

fn main() {
    let what = std::env::args().nth(1).expect("member_rounds WHAT DIR");
    let rank = std::env::var("HOSTBUF_LOCAL_RANK").expect("a rank").parse().expect("a number");
    let line = match what.as_str() {
        "repeated" => repeated(rank),
        "late" => late(rank),
        "refused" => refused(rank),
        "split" => split(rank),
        "absent" => absent(rank),
        _ => panic!("{what} is not known"),
    };
    match line {
        Ok(line) => println!("rank {rank}: {line}"),
        Err(error) => println!("rank {rank} failed: {error}"),
    }
}

fn place(name: &str) -> PathBuf {
    PathBuf::from(std::env::args().nth(2).expect("DIR")).join(name)
}

/// Shows the other ranks that this rank has reached `name`.
fn reached(name: &str) {
    std::fs::write(place(name), "").expect("DIR is writable");
}

/// Waits until a rank has reached `name`.
fn wait_for(name: &str) {
    while !place(name).exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Gathers one number of each rank.
fn gather(group: &dyn Collective, number: u64) -> Result<Vec<u64>> {
    let mut all = vec![0; 8 * group.size()];
    group.all_gather(&number.to_ne_bytes(), &mut all)?;
    Ok(all.chunks_exact(8).map(|bytes| u64::from_ne_bytes(bytes.try_into().expect("8 bytes"))).collect())
}

/// Describes the result of a gather.
fn outcome(result: Result<Vec<u64>>) -> String {
    match result {
        Ok(numbers) => format!("{numbers:?}"),
        Err(error) => error.to_string(),
    }
}

/// Makes the group 20 times. Rank 1 keeps each group until rank 0 has made the next one.
fn repeated(rank: u64) -> Result<String> {
    const ROUNDS: u64 = 20;
    for round in 0..ROUNDS {
        let group = Local::from_env()?;
        if rank == 0 {
            reached(&format!("made.{round}"));
        }
        let numbers = gather(&group, 100 * round + rank)?;
        let expected: Vec<u64> = (0..group.size() as u64).map(|rank| 100 * round + rank).collect();
        assert_eq!(numbers, expected, "round {round}");
        if rank == 1 && round + 1 < ROUNDS {
            wait_for(&format!("made.{}", round + 1));
        }
    }
    Ok(format!("{ROUNDS} rounds"))
}

/// Makes the first group of rank 1 after rank 0 has left its own, and then a second one of both.
fn late(rank: u64) -> Result<String> {
    if rank == 1 {
        wait_for("left");
    }
    let group = Local::from_env()?;
    if rank == 0 {
        drop(group);
        reached("left");
        return Ok(outcome(gather(&Local::from_env()?, 10)));
    }
    let first = outcome(gather(&group, 1));
    drop(group);
    Ok(format!("{first}; {}", outcome(gather(&Local::from_env()?, 11))))
}

/// Gathers twice in a group that rank 2 has left. Then all ranks make a second one.
fn refused(rank: u64) -> Result<String> {
    let group = Local::from_env()?;
    let first = outcome(gather(&group, rank));
    let mut lines = vec![first];
    if rank == 2 {
        drop(group);
        reached("left");
    } else {
        wait_for("left");
        lines.push(outcome(gather(&group, 10 + rank)));
        lines.push(outcome(gather(&group, 20 + rank)));
        drop(group);
    }
    lines.push(outcome(gather(&Local::from_env()?, 30 + rank)));
    Ok(lines.join("; "))
}

/// Gathers in a group of ranks 0 and 1 after rank 2 has left.
fn split(rank: u64) -> Result<String> {
    let group = Local::from_env()?;
    let part = group.split(usize::from(rank == 2))?;
    if rank == 2 {
        drop((part, group));
        reached("left");
        return Ok("left".into());
    }
    wait_for("left");
    let first = outcome(gather(&*part, rank));
    Ok(format!("{first}; {}; {}", outcome(gather(&group, rank)), outcome(gather(&*part, 10 + rank))))
}

/// Gathers in rank 0, while rank 1 ends without a group.
fn absent(rank: u64) -> Result<String> {
    if rank == 1 {
        return Ok("no group".into());
    }
    Ok(outcome(gather(&Local::from_env()?, rank)))
}
