//! A check that fails on one host ends the run on all hosts. The hosts are threads of this process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hostbuf::job::Collective;

use crate::checks::{Check, Outcome, run_each};
use crate::tcp::Tcp;
use crate::tcp_collective::ranks;

fn meets(world: &Tcp) -> Outcome {
    world.barrier().map(|()| "all".into()).map_err(|error| error.to_string())
}

/// Fails on rank 1 while rank 0 waits for it.
fn fails_on_one(world: &Tcp) -> Outcome {
    if world.rank() == 1 { Err("3 bytes differ".into()) } else { meets(world) }
}

/// Fails on rank 1 after rank 0 has passed.
fn fails_late(world: &Tcp) -> Outcome {
    static THROUGH: AtomicBool = AtomicBool::new(false);
    if world.rank() == 1 {
        wait_until(&THROUGH);
        return Err("3 bytes differ".into());
    }
    THROUGH.store(true, Ordering::Release);
    Ok("nothing".into())
}

/// Fails on rank 1, and then on rank 0, which waits for rank 1 by other means than `world` until
/// its own timeout.
fn fails_on_both(world: &Tcp) -> Outcome {
    static FAILED: AtomicBool = AtomicBool::new(false);
    if world.rank() == 1 {
        FAILED.store(true, Ordering::Release);
        return Err("3 bytes differ".into());
    }
    wait_until(&FAILED);
    Err("no signal in time".into())
}

/// Waits until the other rank, a thread of this process, has set `flag`.
fn wait_until(flag: &AtomicBool) {
    let begun = Instant::now();
    while !flag.load(Ordering::Acquire) {
        assert!(begun.elapsed() < Duration::from_secs(30), "the other rank did not come");
        std::thread::yield_now();
    }
}

/// Returns the lines of each rank, without measured values.
fn lines_of(failing: Check<Tcp>) -> Vec<Vec<String>> {
    let checks: [Check<Tcp>; 3] = [("before", meets), failing, ("after", meets)];
    let begun = Instant::now();
    let lines = ranks(2, |world| {
        let mut lines = Vec::new();
        let checks: Vec<_> = checks.iter().collect();
        assert!(run_each(&world, &world, &checks, &mut |line| lines.push(line)));
        lines
    });
    // Far less than the timeout for a message.
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    let first_part = |line: String| line.split(';').next().expect("a part").to_owned();
    lines.into_iter().map(|lines| lines.into_iter().map(first_part).collect()).collect()
}

#[test]
fn a_failure_on_one_host_is_reported_there_and_stops_the_other() {
    let failed = ["ok before all", "FAILED checked 3 bytes differ"];
    for (check, other) in [
        (
            fails_on_one as fn(&Tcp) -> Outcome,
            &["ok before all", "stopped checked since rank 1 failed checked: 3 bytes differ"][..],
        ),
        (
            fails_late,
            &[
                "ok before all",
                "ok checked nothing",
                "stopped after since rank 1 failed checked: 3 bytes differ",
            ],
        ),
    ] {
        assert_eq!(lines_of(("checked", check)), [other, &failed[..]]);
    }
}

/// Each rank measures the time of its failure from its own return from the barrier, so on a busy
/// machine either can be the first. The ranks have to agree on it.
#[test]
fn two_failures_are_reported_as_one_and_a_consequence() {
    let lines = lines_of(("checked", fails_on_both));
    let first = usize::from(lines[1][1].starts_with("FAILED"));
    let why = ["no signal in time", "3 bytes differ"][first];
    let mut expected = [
        "FAILED checked ".to_owned() + why,
        format!("stopped checked since rank {first} failed checked: {why}"),
    ];
    if first == 1 {
        expected.reverse();
    }
    let [zero, one] = expected;
    assert_eq!(lines, [["ok before all", &zero], ["ok before all", &one]]);
}
