//! A job whose processes a test observes and kills.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use hostbuf_os::process;
use hostbuf_tests::{Scratch, eventually, fixture, hostbuf, processes_with};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The time limit for the end of a job.
pub const SOON: Duration = Duration::from_secs(5);
/// The time limit for a job to reach the state that a test waits for.
pub const ARRIVAL: Duration = Duration::from_secs(30);

/// Returns the path of the program `job_probe`.
pub fn probe() -> String {
    hostbuf_tests::program("job_probe").to_str().expect("the repository's path is UTF-8").to_owned()
}

/// A job that runs beside the test. All its processes have its mark in their command line or
/// environment.
pub struct RunningJob {
    pub mark: String,
    pub dir: Scratch,
    pub launcher: Child,
    /// The agents' socket, once there is an agent.
    pub socket: String,
}

impl RunningJob {
    /// Runs `hostbuf run --launcher local` with one buffer of `size` and the options `more`. In
    /// `program`, DIR stands for the job's own folder.
    pub fn start(
        mark: &str,
        size: &str,
        more: &[&str],
        program: &[&str],
        set: impl FnOnce(&mut Command, &Scratch),
    ) -> RunningJob {
        RunningJob::start_at(|mark| (hostbuf(), Scratch::new(mark)), mark, size, more, program, set)
    }

    /// Starts a job like [`RunningJob::start`], with the command and the directory that `place`
    /// returns for the job's mark.
    pub fn start_at(
        place: impl FnOnce(&str) -> (PathBuf, Scratch),
        mark: &str,
        size: &str,
        more: &[&str],
        program: &[&str],
        set: impl FnOnce(&mut Command, &Scratch),
    ) -> RunningJob {
        let mark = format!("{mark}-{}", std::process::id());
        let (hostbuf, dir) = place(&mark);
        let mut command = Command::new(hostbuf);
        command
            .args(["run", "--quiet", "--launcher", "local", "--buffer", &format!("name={mark},{size}")])
            .args(more)
            .arg("--");
        let folder = dir.0.to_str().expect("UTF-8").to_owned();
        command.args(program.iter().map(|word| if *word == "DIR" { folder.as_str() } else { word }));
        fs::create_dir(dir.0.join("tmp")).expect("it is new");
        command.env("TMPDIR", dir.0.join("tmp"));
        let file = |name| File::create(dir.0.join(name)).expect("it is new");
        command.stdin(Stdio::null()).stdout(file("out")).stderr(file("err"));
        set(&mut command, &dir);
        let launcher = command.spawn().expect("the launcher starts");
        let mut job = RunningJob { mark, dir, launcher, socket: String::new() };
        eventually("an agent", ARRIVAL, || {
            job.socket = socket_of(&job.mark).unwrap_or_default();
            !job.socket.is_empty()
                || job.launcher.try_wait().expect("the process is a child of this one").is_some()
        });
        job
    }

    pub fn pid(&self) -> i32 {
        self.launcher.id() as i32
    }

    pub fn agent(&self) -> Option<i32> {
        children(self.pid()).into_iter().find(|&p| words(p).get(1).is_some_and(|w| w == "agent"))
    }

    pub fn rank(&self, rank: usize) -> Option<i32> {
        // The second one is that of a rank that has not become its program yet.
        let variables = ["HOSTBUF_RANK", "HOSTBUF_LAUNCHED_RANK"].map(|name| format!("{name}={rank}"));
        let is_it = |&pid: &i32| environment(pid).iter().any(|entry| variables.contains(entry));
        children(self.pid()).into_iter().find(is_it)
    }

    pub fn err(&self) -> String {
        fs::read_to_string(self.dir.0.join("err")).expect("the file exists")
    }

    pub fn out(&self) -> String {
        fs::read_to_string(self.dir.0.join("out")).expect("the file exists")
    }

    /// Waits for the launcher's exit, at most `limit`, and returns its status.
    #[track_caller]
    pub fn end(&mut self, limit: Duration) -> ExitStatus {
        let mut status = None;
        eventually("the launcher's end", limit, || {
            status = self.launcher.try_wait().expect("the process is a child of this one");
            status.is_some()
        });
        status.expect("the value was just read")
    }

    /// Lists everything of this job that still exists.
    pub fn remains(&self) -> Vec<String> {
        let mut list = remains(&self.mark, &self.socket);
        let files = fs::read_dir(self.dir.0.join("tmp")).into_iter().flatten().flatten();
        list.extend(files.map(|f| format!("file {}", f.path().display())));
        list
    }

    #[track_caller]
    pub fn leaves_nothing(&self, what: &str) {
        let begun = Instant::now();
        loop {
            let remains = self.remains();
            if remains.is_empty() {
                return;
            }
            assert!(begun.elapsed() < SOON, "{what}: left behind: {remains:#?}\n{}", self.err());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for RunningJob {
    fn drop(&mut self) {
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}

fn parts(pid: i32, file: &str) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    bytes
        .split(|&b| b == 0)
        .filter(|w| !w.is_empty())
        .map(|w| String::from_utf8_lossy(w).into_owned())
        .collect()
}

pub fn words(pid: i32) -> Vec<String> {
    parts(pid, "cmdline")
}

pub fn environment(pid: i32) -> Vec<String> {
    parts(pid, "environ")
}

fn pids() -> Vec<i32> {
    let entries = fs::read_dir("/proc").expect("/proc is there").flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

pub fn children(parent: i32) -> Vec<i32> {
    pids().into_iter().filter(|&p| process::parent(p) == Some(parent)).collect()
}

/// Returns the socket of the job that has `mark` on its command lines.
pub fn socket_of(mark: &str) -> Option<String> {
    let agents = processes_with(mark).into_iter().map(|(pid, _)| words(pid));
    agents.flatten().find_map(|w| w.strip_prefix("--socket=").map(str::to_owned))
}

/// Lists the processes, sockets and memory of a job on this machine, simulated hosts included.
pub fn remains(mark: &str, socket: &str) -> Vec<String> {
    let mut list: BTreeSet<String> = BTreeSet::new();
    for what in [mark, socket].into_iter().filter(|w| !w.is_empty()) {
        list.extend(processes_with(what).into_iter().map(|(pid, line)| format!("process {pid} {line}")));
    }
    let job = socket.rsplit('/').next().unwrap_or("");
    if job.is_empty() {
        return list.into_iter().collect();
    }
    if !list.is_empty() {
        // The remaining search is expensive, and the job's memory cannot be gone while these exist.
        return list.into_iter().collect();
    }
    let memory = format!("hostbuf:{job}:");
    let mut namespaces = BTreeSet::new();
    for pid in pids() {
        let Ok(namespace) = fs::read_link(format!("/proc/{pid}/ns/net")) else { continue };
        if namespaces.insert(namespace) {
            let sockets = fs::read_to_string(format!("/proc/{pid}/net/unix")).unwrap_or_default();
            list.extend(sockets.lines().filter(|l| l.contains(socket)).map(|l| format!("socket {l}")));
        }
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        list.extend(maps.lines().filter(|l| l.contains(&memory)).map(|l| format!("process {pid} maps {l}")));
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            let target = fs::read_link(entry.path()).unwrap_or_default();
            if target.to_string_lossy().contains(&memory) {
                list.insert(format!("process {pid} holds {}", target.display()));
            }
        }
    }
    // Simulated hosts have folders of their own.
    let mut namespaces = BTreeSet::new();
    for pid in pids() {
        let Ok(namespace) = fs::read_link(format!("/proc/{pid}/ns/mnt")) else { continue };
        if !namespaces.insert(namespace) {
            continue;
        }
        for dir in ["dev/shm", "tmp"] {
            for entry in fs::read_dir(format!("/proc/{pid}/root/{dir}")).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.contains(job) || name.contains(mark) {
                    list.insert(format!("file /{dir}/{name}"));
                }
            }
        }
    }
    list.into_iter().collect()
}

pub fn kill_now(pid: i32) {
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
}

/// Builds the library that holds a rank back.
pub fn hold() -> String {
    let built = fixture("cc", "hold.c", &["-shared", "-fPIC"]).expect("a C compiler is there");
    built.to_str().expect("UTF-8").to_owned()
}
