//! Simulated hosts on which a test runs jobs, and their processes.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Stdio};

use hostbuf_tests::{Scratch, simulated_command};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::running_job::{environment, words};

/// Simulated hosts that run several jobs one after another, so that the remains of a job can be
/// seen before the hosts end.
pub struct Cluster {
    simhosts: Child,
    pub dir: Scratch,
    commands: File,
}

impl Cluster {
    /// Starts `hosts` hosts with the MPI `flavour`.
    pub fn start(name: &str, flavour: &str, hosts: usize) -> Cluster {
        let dir = Scratch::new(name);
        let fifo = dir.path("commands");
        nix::unistd::mkfifo(fifo.as_str(), nix::sys::stat::Mode::S_IRWXU).expect("a fifo");
        let script = format!("while read -r line <&3; do eval \"$line\" 3<&- & done 3<>{fifo}");
        let mut command = simulated_command(hosts, flavour, &script);
        let simhosts = command.stdin(Stdio::null()).spawn().expect("scripts/simhosts starts");
        // The file is opened for both reading and writing, so that opening does not wait for the
        // reader.
        let commands = File::options().read(true).write(true).open(&fifo).expect("the file exists");
        Cluster { simhosts, dir, commands }
    }

    /// Runs a line of a shell script, and does not wait for it.
    pub fn run(&mut self, command: &str) {
        writeln!(self.commands, "{command}").expect("the fifo has room");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.simhosts.id() as i32), Signal::SIGTERM);
        let _ = self.simhosts.wait();
    }
}

/// Returns whether the program of a process has this file name.
pub fn named(pid: i32, name: &str) -> bool {
    words(pid).first().is_some_and(|w| Path::new(w).file_name().is_some_and(|n| n == name))
}

/// Returns whether a process belongs to a rank of Open MPI or MPICH.
pub fn of_mpi_rank(pid: i32, rank: usize) -> bool {
    let variables = ["OMPI_COMM_WORLD_RANK", "PMI_RANK"].map(|name| format!("{name}={rank}"));
    environment(pid).iter().any(|variable| variables.contains(variable))
}
