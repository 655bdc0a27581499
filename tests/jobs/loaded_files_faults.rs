//! Signals to a job with loaded files, at any time: no folder remains, except that links without
//! targets remain if launcher and agent are killed, and the next job replaces these.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use hostbuf_tests::{eventually, rounds};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::loaded_files::FilesToLoad;
use crate::loaded_tensors::files_of;
use crate::running_job::{ARRIVAL, RunningJob, SOON, kill_now};

/// The processes that get a signal.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Target {
    Launcher(Signal),
    Agent,
    AgentThenLauncher,
    LauncherThenAgent,
}

const TARGETS: [Target; 6] = [
    Target::Launcher(Signal::SIGINT),
    Target::Launcher(Signal::SIGTERM),
    Target::Launcher(Signal::SIGKILL),
    Target::Agent,
    Target::AgentThenLauncher,
    Target::LauncherThenAgent,
];

impl Target {
    /// Sends the signals. Returns whether both processes were killed.
    fn strike(self, launcher: i32, agent: Option<i32>) -> bool {
        match self {
            Target::Launcher(signal) => drop(kill(Pid::from_raw(launcher), signal)),
            Target::Agent => agent.into_iter().for_each(kill_now),
            Target::AgentThenLauncher => agent.into_iter().chain([launcher]).for_each(kill_now),
            Target::LauncherThenAgent => [launcher].into_iter().chain(agent).for_each(kill_now),
        }
        matches!(self, Target::AgentThenLauncher | Target::LauncherThenAgent)
    }
}

fn start(files: &FilesToLoad, mark: &str) -> RunningJob {
    let (file, folder) = (files.scratch.path("in/x"), files.folder());
    let more = ["-n", "2", "--load", &file, "--as-files", &folder];
    RunningJob::start(mark, "size=1M", &more, &["sleep", "1000"], |_, _| {})
}

/// Asserts that a folder has nothing but links that lead nowhere.
#[track_caller]
fn assert_dangling(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        assert!(fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink()), "{}", path.display());
        assert!(!path.exists(), "{} leads to {:?}", path.display(), fs::read_link(&path));
    }
}

/// Sends the signals to a job that has run for `delay`, or that has its files, and checks what
/// remains. Returns whether links may remain.
fn strike_after(files: &FilesToLoad, target: Target, delay: Option<Duration>, round: usize) -> bool {
    let folder = files.folder();
    let folder = Path::new(&folder);
    let mut job = start(files, &format!("files-{round}"));
    match delay {
        Some(delay) => {
            let begun = Instant::now();
            while begun.elapsed() < delay {
                std::thread::yield_now();
            }
        }
        // The folder is complete before the ranks go on to `main`.
        None => eventually("the files", ARRIVAL, || folder.join("x").exists()),
    }
    let agent = job.agent();
    let what = format!("{target:?} after {delay:?}");
    let both = target.strike(job.pid(), agent);
    if target == Target::Agent {
        // If the ranks run, the job continues without the agent.
        let _ = kill(Pid::from_raw(job.pid()), Signal::SIGTERM);
    }
    job.end(2 * SOON);
    job.leaves_nothing(&what);
    if both {
        assert_dangling(folder);
    } else {
        eventually(&format!("{what}: the folder is gone"), SOON, || fs::symlink_metadata(folder).is_err());
    }
    both
}

#[test]
fn a_job_that_is_killed_while_its_ranks_run_leaves_no_folder() {
    let files = FilesToLoad::new("files-killed-late", &[(b"x", 3 << 20)]);
    for (round, target) in TARGETS.into_iter().enumerate() {
        strike_after(&files, target, None, round);
    }
    // The links of the last job lead nowhere, and the next job takes their place.
    let mut job = start(&files, "files-next");
    eventually("the files", ARRIVAL, || Path::new(&files.folder()).join("x").exists());
    eventually("the state", ARRIVAL, || files_of(&job)["state"] == json!("complete"));
    let report = files_of(&job);
    let file = &report["files"][0];
    assert_eq!((&report["loaded_bytes"], &file["bytes"]), (&json!(3 << 20), &json!(3 << 20)), "{report}");
    assert_eq!(file["path"], json!(files.scratch.path("in/x")), "{report}");
    kill(Pid::from_raw(job.pid()), Signal::SIGTERM).expect("the process is a child of this one");
    job.end(SOON);
    assert!(fs::symlink_metadata(files.folder()).is_err(), "hostbuf has made the folder");
}

#[test]
fn a_job_that_is_killed_at_any_moment_of_its_start_leaves_no_folder() {
    let files = FilesToLoad::new("files-killed-early", &[(b"x", 48 << 20)]);
    // The start takes about 100 ms.
    let moments = [0, 3, 7, 13, 20, 28, 37, 50, 64, 80, 100, 130].map(Duration::from_millis);
    for round in rounds(12, 72, Duration::from_secs(5)) {
        let (target, moment) = (TARGETS[round % TARGETS.len()], moments[round * 5 % moments.len()]);
        if strike_after(&files, target, Some(moment), round) {
            // The next job may be killed before it comes to the folder.
            let _ = fs::remove_dir_all(files.folder());
        }
    }
}
