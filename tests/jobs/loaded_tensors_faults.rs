//! Signals to a job that loads files of tensors, at any time of its start: nothing remains.

use std::time::{Duration, Instant};

use hostbuf_tests::rounds;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::loaded_tensors::TensorFiles;
use crate::running_job::{RunningJob, SOON, kill_now};

/// A process of the job that gets a signal.
#[derive(Clone, Copy, Debug, PartialEq)]
enum StruckProcess {
    Launcher(Signal),
    Agent,
    Rank,
    AgentAndLauncher,
}

const STRUCK: [StruckProcess; 5] = [
    StruckProcess::Launcher(Signal::SIGTERM),
    StruckProcess::Launcher(Signal::SIGKILL),
    StruckProcess::Agent,
    StruckProcess::Rank,
    StruckProcess::AgentAndLauncher,
];

#[test]
fn a_job_that_is_killed_while_it_loads_leaves_nothing() {
    let files = TensorFiles::new("tensors-killed", 64 << 20);
    // The start takes about 200 ms.
    let moments = [0, 7, 20, 37, 64, 100, 140, 180, 250].map(Duration::from_millis);
    for round in rounds(10, 90, Duration::from_secs(5)) {
        let (struck, moment) = (STRUCK[round % STRUCK.len()], moments[round * 5 % moments.len()]);
        let more = [&["-n", "2"], &files.options()[..]].concat();
        let program = ["sleep", "1000"];
        let mut job =
            RunningJob::start(&format!("tensors-killed-{round}"), "size=1M", &more, &program, |_, _| {});
        let begun = Instant::now();
        while begun.elapsed() < moment {
            std::thread::yield_now();
        }
        let agent = job.agent();
        match struck {
            StruckProcess::Launcher(signal) => drop(kill(Pid::from_raw(job.pid()), signal)),
            StruckProcess::Agent => agent.into_iter().for_each(kill_now),
            StruckProcess::Rank => job.rank(1).into_iter().for_each(kill_now),
            StruckProcess::AgentAndLauncher => agent.into_iter().chain([job.pid()]).for_each(kill_now),
        }
        // A job whose ranks run goes on without the agent, and without a rank that was not there.
        let _ = kill(Pid::from_raw(job.pid()), Signal::SIGTERM);
        job.end(2 * SOON);
        job.leaves_nothing(&format!("{struck:?} after {moment:?}"));
    }
}
