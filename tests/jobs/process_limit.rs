//! Limits on the number of processes and threads (RLIMIT_NPROC), which count all processes of a
//! user.

use hostbuf_tests::CommandOutput;

use crate::other_user::OtherUser;

/// Runs a job as another user with each of a range of limits. Under each limit another process or
/// thread is the first that cannot start: the launcher, the agent, one of its threads, a process
/// that allocates memory, or a rank.
#[test]
fn a_process_limit_ends_the_job_with_an_error_that_names_it() {
    let Some(other) = OtherUser::new("a limit on processes") else { return };
    let mut refused = 0;
    for limit in 2..=12 {
        // `timeout` becomes a process of that user too, so the launcher is its second one.
        let script = format!(
            "ulimit -u {limit} && exec timeout -s KILL 60 {} run --launcher local -n 2 --size 1M -- true",
            other.hostbuf().display()
        );
        let outcome = CommandOutput::of(other.command("bash").args(["-c", &script]));
        let err = &outcome.stderr;
        if outcome.status == 0 {
            assert_eq!(err, "", "limit {limit}");
            continue;
        }
        // Of a launcher that hangs, `timeout` reports the signal that has ended it. With the lowest
        // limits `timeout` itself may not be able to start the launcher.
        let by_timeout = outcome.status == 125 && err.starts_with("timeout: ");
        let named =
            err.lines().count() == 1 && err.contains("starting ") && err.contains("raise `ulimit -u`");
        assert!(by_timeout || outcome.status == 85 && named, "limit {limit}: {outcome:?}");
        refused += usize::from(named);
    }
    assert!(refused > 0, "no limit was reached");
}

/// Starts the agent of `hostbuf exec` as another user who may have few processes.
#[test]
fn a_process_limit_that_forbids_the_agent_of_exec_is_named() {
    let Some(other) = OtherUser::new("a limit on processes for an agent") else { return };
    let script = format!("ulimit -u 1 && exec {} exec --size 1M -- true", other.hostbuf().display());
    let outcome = CommandOutput::of(other.command("bash").args(["-c", &script]));
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    let [line] = lines[..] else { panic!("{outcome:?}") };
    assert!(line.contains("starting the agent of this host (raise `ulimit -u`"), "{line}");
    assert_eq!(outcome.status, 85, "{outcome:?}");
}

/// The rank of `hostbuf exec` prints the error of an agent that cannot start a thread.
#[test]
fn an_agent_of_exec_without_its_thread_is_reported_by_its_rank() {
    let program = hostbuf_tests::hostbuf();
    // Limits on memory, since the limit on processes counts those of other tests. They leave room
    // for the libraries and the first thread of the agent, and none for the stack of another.
    for limit in [1024, 1152, 1280] {
        let script = format!("ulimit -d {limit} && exec {} exec --size 1M -- true", program.display());
        let outcome = CommandOutput::of(std::process::Command::new("bash").args(["-c", &script]));
        let begins = outcome.stderr.starts_with("hostbuf: starting a thread of the agent on ");
        assert!(begins && outcome.stderr.contains("`-d`"), "limit {limit}: {outcome:?}");
        assert_eq!((outcome.status, outcome.stderr.lines().count()), (85, 1), "limit {limit}: {outcome:?}");
    }
}
