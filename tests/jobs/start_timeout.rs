//! Ranks that never connect, vote or map: the job fails after the time limit, and names them.

use hostbuf_os::process;
use hostbuf_tests::{CommandOutput, can_simulate, eventually, flavours, hostbuf, run, simulated, skip};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::arguments::one_line;
use crate::running_job::{ARRIVAL, RunningJob, SOON, hold};

/// Starts two ranks. Rank 1 waits forever at `place` before its main. The time limit of the job is
/// `seconds`.
fn held(place: &'static str, seconds: &str) -> RunningJob {
    let options = ["-n", "2", "--start-timeout", seconds];
    let job = RunningJob::start(
        &format!("late-{place}"),
        "size=1M",
        &options,
        &["sleep", "1000"],
        |command, dir| {
            command.env("LD_PRELOAD", hold()).env("HOLD_RANK", "1").env("HOLD_AT", place);
            command.env("HOLD_FILE", dir.path("held"));
        },
    );
    eventually("rank 1 is held", ARRIVAL, || job.dir.has("held"));
    job
}

#[test]
fn the_error_names_a_rank_that_hangs_before_its_main() {
    let host = process::host_name();
    for (place, words) in [
        (
            "exec",
            format!(
                "1 of 2 ranks on {host} have connected, and no further rank has connected within 1 s (local rank 1 is missing)"
            ),
        ),
        ("image", format!("rank 1 on {host} (process PID) has not voted within 1 s")),
        ("ballot", format!("rank 1 on {host} (process PID) has not voted within 1 s")),
        ("agreed", format!("rank 1 on {host} (process PID) has not mapped the buffers within 1 s")),
    ] {
        let mut job = held(place, "1");
        let words = words.replace("PID", &job.rank(1).expect("it is held").to_string());
        let status = job.end(3 * SOON);
        let err = job.err();
        assert_eq!((status.code(), err.lines().count()), (Some(87), 1), "{place}: {err}");
        assert!(err.starts_with(&format!("hostbuf run: {words}")), "{place}: {err}");
        assert!(err.contains("--start-timeout"), "{place}: {err}");
        job.leaves_nothing(place);
    }
}

#[test]
fn a_stopped_rank_is_reported_as_stopped() {
    let mut job = held("image", "3");
    kill(Pid::from_raw(job.rank(1).expect("it is held")), Signal::SIGSTOP).expect("it is held");
    assert_eq!(job.end(4 * SOON).code(), Some(87), "{}", job.err());
    assert!(job.err().contains("within 3 s and is stopped"), "{}", job.err());
    job.leaves_nothing("stopped");
}

#[test]
fn a_stopped_agent_does_not_defeat_the_limit() {
    // Rank 1 has not connected, or waits for its agent.
    for place in ["exec", "ballot"] {
        let mut job = held(place, "1");
        let agent = job.agent().expect("the job waits for rank 1");
        kill(Pid::from_raw(agent), Signal::SIGSTOP).expect("it runs");
        let status = job.end(3 * SOON);
        let err = job.err();
        assert_eq!((status.code(), err.lines().count()), (Some(86), 1), "{place}: {err}");
        let host = process::host_name();
        let who = format!("hostbuf run: the agent on {host} (process {agent}) was stopped by SIGSTOP ");
        assert!(err.starts_with(&who) && err.contains("within 1 s: "), "{place}: {err}");
        assert!(err.contains("raise --start-timeout"), "{place}: {err}");
        job.leaves_nothing(place);
    }
}

#[test]
fn without_a_limit_the_job_waits_for_a_late_rank() {
    // Longer than the other job needs to fail. That job was started later, and its agent measures
    // the time.
    let mut patient = held("image", "0");
    held("image", "1").end(3 * SOON);
    assert!(
        patient.launcher.try_wait().expect("the process is a child of this one").is_none(),
        "{}",
        patient.err()
    );
    kill(Pid::from_raw(patient.pid()), Signal::SIGTERM).expect("the process is a child of this one");
    patient.end(SOON);
    patient.leaves_nothing("patient");
}

#[test]
fn the_environment_sets_the_limit() {
    let mut command = std::process::Command::new(hostbuf());
    command.env("HOSTBUF_START_TIMEOUT", "soon").args([
        "run",
        "--launcher",
        "local",
        "--size",
        "1M",
        "--",
        "true",
    ]);
    one_line(&CommandOutput::of(&mut command), 2, &["HOSTBUF_START_TIMEOUT", "\"soon\"", "seconds"]);
    let mut job =
        RunningJob::start("late-variable", "size=1M", &["-n", "2"], &["sleep", "1000"], |command, dir| {
            command.env("LD_PRELOAD", hold()).env("HOLD_RANK", "1").env("HOLD_AT", "image");
            command.env("HOLD_FILE", dir.path("held")).env("HOSTBUF_START_TIMEOUT", "1");
        });
    assert_eq!(job.end(3 * SOON).code(), Some(87), "{}", job.err());
    assert!(job.err().contains("has not voted within 1 s"), "{}", job.err());
    job.leaves_nothing("variable");
    assert!(run(&["run", "--help"]).stdout.contains("HOSTBUF_START_TIMEOUT"));
}

#[test]
fn ranks_missing_on_another_host_are_reported() {
    if !can_simulate() {
        return;
    }
    if !flavours().iter().any(|f| f == "openmpi4") {
        return skip("ranks missing on another host: Open MPI 4 is not installed");
    }
    // Rank 1, alone on h1, is held before it connects, so that host's agent has seen no rank at
    // all.
    let script = format!(
        "timeout -k 1 40 $HOSTBUF run -n 2 --host h0:1,h1:1 --mpirun $MPIRUN --size 1M --start-timeout 1 \
         --launcher-arg -x --launcher-arg LD_PRELOAD={} --launcher-arg -x --launcher-arg HOLD_RANK=1 \
         --launcher-arg -x --launcher-arg HOLD_AT=exec --launcher-arg -x --launcher-arg HOLD_FILE=$SIMHOSTS_DIR/held \
         -- sleep 1000; echo status $?",
        hold()
    );
    let outcome = simulated(2, "openmpi4", &script);
    let said = "1 of 2 ranks have connected to the agents of their hosts, and no further rank has connected within 1 s";
    assert!(outcome.stderr.contains(said), "{outcome:?}");
    let status = outcome.lines("status ");
    assert!(status.len() == 1 && status[0] != "0" && status[0] != "124", "{outcome:?}");
}

#[test]
fn hostbuf_exec_has_the_same_limit() {
    if !can_simulate() {
        return;
    }
    if !flavours().iter().any(|f| f == "openmpi4") {
        return skip("a rank without hostbuf exec: Open MPI 4 is not installed");
    }
    // The second rank is started without `hostbuf exec`, so it never connects to the agent.
    let script = "timeout -k 1 40 $MPIRUN $MPIRUN_FLAGS --host h0:2 -np 1 $HOSTBUF exec --size 1M --start-timeout 1 -- sleep 1000 : \
                  --host h0:2 -np 1 sleep 1000; echo status $?";
    let outcome = simulated(1, "openmpi4", script);
    let said = "hostbuf: 1 of 2 ranks on h0 have connected, and no further rank has connected within 1 s (local rank 1 is missing)";
    assert!(outcome.stderr.contains(said), "{outcome:?}");
    let status = outcome.lines("status ");
    assert!(status.len() == 1 && status[0] != "0" && status[0] != "124", "{outcome:?}");
}
