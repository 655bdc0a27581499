//! Filling the buffer once, freezing it, and damage to the control page.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use hostbuf_tests::{CommandOutput, eventually, hostbuf, local};

use crate::running_job::{ARRIVAL, RunningJob, SOON, kill_now, probe};

/// Starts ranks that outlive their programs, so the job continues after one of the programs is
/// killed.
fn under_shells(mark: &str, ranks: usize, what: &str) -> RunningJob {
    let script = format!("{} {what}; true", probe());
    RunningJob::start(
        mark,
        "size=8M",
        &["-n", &ranks.to_string()],
        &["sh", "-c", &script.replace("DIR", "$0"), "DIR"],
        |_, _| {},
    )
}

#[test]
fn a_killed_filler_is_replaced_within_a_second() {
    for size in ["", ",lazy"] {
        let script = format!("{} takeover $0; true", probe());
        let size = format!("size=8M{size}");
        let mut job =
            RunningJob::start("takeover", &size, &["-n", "3"], &["sh", "-c", &script, "DIR"], |_, _| {});
        let filling = |job: &RunningJob| {
            (0..3).find_map(|r| fs::read_to_string(job.dir.path(&format!("filling.{r}"))).ok())
        };
        eventually("one fills", ARRIVAL, || filling(&job).is_some());
        let filler: i32 = filling(&job).expect("the value was just read").parse().expect("its pid");
        // The others wait.
        let waiting = || {
            hostbuf_tests::processes_with(&job.mark)
                .iter()
                .filter(|(_, l)| l.contains("job_probe takeover"))
                .count()
        };
        eventually("all three are there", ARRIVAL, || waiting() >= 3);
        let begun = Instant::now();
        kill_now(filler);
        eventually("another has filled", ARRIVAL, || job.out().lines().count() == 2);
        // Detection takes at most 0.1 s; the rest of the limit is for zeroing, filling and a busy
        // machine.
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        assert!(job.end(SOON).success(), "{}", job.err());
        let out = job.out();
        let mut lines: Vec<&str> = out.lines().collect();
        lines.sort_unstable();
        assert_eq!(
            lines,
            ["value 4711 generation 2 filled no", "value 4711 generation 2 filled zeroed"],
            "{}",
            job.err()
        );
        job.leaves_nothing("takeover");
    }
}

#[test]
fn no_rank_hangs_if_every_filler_but_the_last_is_killed() {
    // The first three of four fillers are killed during their fill, one after another.
    let mut job = under_shells("one-by-one", 4, "fill-forever DIR");
    for round in 0..4 {
        let fillers = |job: &RunningJob| -> Vec<i32> {
            let read = (0..4).filter_map(|r| fs::read_to_string(job.dir.path(&format!("filling.{r}"))).ok());
            read.map(|p| p.parse().expect("a pid")).collect()
        };
        eventually("one more fills", ARRIVAL, || fillers(&job).len() == round + 1);
        let alive =
            |pid: &i32| fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|c| !c.is_empty());
        let filler: Vec<i32> = fillers(&job).into_iter().filter(alive).collect();
        assert_eq!(filler.len(), 1, "never two at a time");
        kill_now(filler[0]);
    }
    assert!(job.end(SOON).success(), "{}", job.err());
    job.leaves_nothing("one by one");
}

#[test]
fn a_fill_that_fails_or_panics_is_repeated() {
    for how in ["error", "panic"] {
        for ranks in [1, 3] {
            let outcome = local(ranks, "4M", &[], &[&probe(), "fail-first", "-", how]).ok();
            let lines = outcome.lines("value 4711 generation 2 failures ");
            assert_eq!(lines.len(), ranks, "{how}: {outcome:?}");
            let failures: u32 = lines.iter().map(|l| l.parse::<u32>().expect("a number")).sum();
            assert_eq!(failures, 1, "{how}: one rank was told: {outcome:?}");
        }
    }
}

#[test]
fn maps_and_lists_are_read_by_another_process() {
    for ranks in [2, 3] {
        let outcome = local(ranks, "4M", &[], &[&probe(), "tables"]).ok();
        let sum: u64 = (0..1000u64).map(|k| k % 7).map(|n| n * n.saturating_sub(1) / 2).sum();
        let all = format!("found 1000 sum {sum} absent true empty 0 0 none None filled ");
        let mut filled = outcome.lines(&all);
        filled.sort();
        assert_eq!(filled.len(), ranks, "{outcome:?}");
        assert_eq!(filled.iter().filter(|f| *f == "true").count(), 1, "one rank filled: {outcome:?}");
    }
}

#[test]
fn frozen_memory_is_sealed_by_the_kernel_and_a_write_faults() {
    let probe = probe();
    // The seals against shrinking, growing, writing, future writing and further seals.
    let seals = libc::F_SEAL_SHRINK
        | libc::F_SEAL_GROW
        | libc::F_SEAL_WRITE
        | libc::F_SEAL_FUTURE_WRITE
        | libc::F_SEAL_SEAL;
    for ranks in [1, 3] {
        let outcome = local(ranks, "4M", &[], &[&probe, "freeze", "-", "plain"]).ok();
        assert_eq!(outcome.lines("proof sealed").len(), ranks, "{outcome:?}");
        for rank in 0..ranks {
            // SIGSEGV ended the forked child when it wrote.
            let line = format!("rank {rank} seals {seals:#x} child -{} before 0 bytes true", libc::SIGSEGV);
            assert_eq!(outcome.lines(&line).len(), 1, "{line}: {outcome:?}");
        }
    }
    for rank in [0, 1] {
        let outcome = local(2, "4M", &[], &[&probe, "freeze", "-", &format!("write:{rank}")]);
        assert_eq!(outcome.status, 128 + libc::SIGSEGV, "rank {rank} wrote: {outcome:?}");
        assert!(!outcome.stdout.contains("written"), "{outcome:?}");
    }
}

#[test]
fn the_error_names_processes_that_may_still_write() {
    let probe = probe();
    // A child from before the freeze keeps its writable mapping.
    let outcome = local(2, "4M", &[], &[&probe, "freeze", "-", "child-before"]).ok();
    let proofs = outcome.lines("proof weaker ");
    assert_eq!(proofs.len(), 2, "{outcome:?}");
    let child = outcome
        .stdout
        .lines()
        .find_map(|l| l.strip_prefix("rank 0 ")?.split(" before ").nth(1)?.split(' ').next());
    let named = format!("process {} (job_probe)", child.expect("it had one"));
    assert!(proofs.iter().all(|p| p.contains(&named)), "{named}: {outcome:?}");
    // Even so the ranks themselves cannot write, and no rank gets a slice.
    assert!(
        outcome
            .stdout
            .lines()
            .filter(|l| l.starts_with("rank"))
            .all(|l| l.contains("child -11") && l.ends_with("bytes false")),
        "{outcome:?}"
    );
    // A shell that waits for the program also maps the buffer.
    let script = format!("{probe} freeze - plain; true");
    let outcome = local(1, "4M", &[], &["sh", "-c", &script]).ok();
    let proofs = outcome.lines("proof weaker ");
    assert!(proofs.len() == 1 && proofs[0].contains("(sh)"), "{outcome:?}");
    // A shell that the program replaces does not.
    let script = format!("exec {probe} freeze - plain");
    assert_eq!(local(1, "4M", &[], &["sh", "-c", &script]).ok().lines("proof sealed").len(), 1);
}

/// Runs a job of one rank, for at most a minute.
fn bounded(what: &str) -> CommandOutput {
    let mut command = Command::new("timeout");
    command.arg("60").arg(hostbuf()).args(["run", "--launcher", "local", "-n", "1", "--size", "1M", "--"]);
    CommandOutput::of(command.args([&probe(), what]))
}

#[test]
fn no_process_changes_the_identity_and_a_flipped_byte_of_a_copy_is_an_error() {
    let outcome = bounded("flip-identity").ok();
    // Writing, mapping writable, truncating, and freeing pages.
    let line = outcome.lines("denied [true, true, true, true] refused ");
    let (refused, tried) = line.first().and_then(|l| l.split_once(" of ")).expect("it said so");
    assert!(tried.parse::<u32>().is_ok_and(|tried| tried > 400), "{outcome:?}");
    assert_eq!(refused, tried, "{outcome:?}");
    assert_eq!(outcome.said(), [""; 0]);
}

#[test]
fn a_flipped_byte_of_a_changing_word_never_causes_a_crash_or_a_loss() {
    let outcome = bounded("flip-state").ok();
    let line = outcome.lines("tried ").pop().expect("it said so");
    assert!(line.contains(" bad 0 "), "{outcome:?}");
    assert!(!line.ends_with("errors 0"), "some are noticed: {outcome:?}");
}

#[test]
fn a_flipped_byte_never_hangs_a_waiting_process() {
    let outcome = bounded("flip-waiting").ok();
    assert_eq!(outcome.lines("waiter 2 filler 0 value Some(4711) soon true").len(), 1, "{outcome:?}");
}
