//! A job that is held while its hosts exchange the windows of loaded files.

use std::fs;
use std::time::{Duration, Instant};

use hostbuf_tests::{
    Scratch, can_simulate, eventually, fixture, flavours, processes_with, program, simulated, skip,
};

use crate::cluster::{Cluster, named, of_mpi_rank};
use crate::loaded_tensors::TensorFiles;
use crate::running_job::{ARRIVAL, remains, socket_of};

/// The program of the jobs whose ranks load files.
pub const LOADER: &str = "held_load";

/// The time limit for the end of a job. Open MPI needs about four seconds to end both of its jobs.
const END: Duration = Duration::from_secs(20);

/// A job whose processes are held while the hosts exchange windows.
pub struct ExchangingJob {
    _cluster: Cluster,
    pub case: Scratch,
    pub files: TensorFiles,
    socket: String,
}

impl ExchangingJob {
    /// Starts a job of Open MPI 4 whose agents load files before `main`, with one rank on each
    /// host. Returns `None` if this machine cannot run it.
    pub fn of_agents(name: &str, hosts: usize) -> Option<ExchangingJob> {
        const FLAVOUR: &str = "openmpi4";
        if !can_simulate() {
            return None;
        }
        if !flavours().iter().any(|flavour| flavour == FLAVOUR) {
            skip("deaths in the exchange of loaded files: Open MPI 4 is not installed");
            return None;
        }
        let hold = fixture("cc", "hold_exchange.c", &["-shared", "-fPIC", "-ldl"]);
        let hold = hold.expect("a C compiler is there");
        Some(ExchangingJob::start(name, FLAVOUR, hosts, 1, |case, files| {
            let variables = [
                format!("LD_PRELOAD={}", hold.display()),
                "HOLD_WINDOW=1".to_owned(),
                format!("HOLD_FILE={}", case.path("held")),
            ];
            let set = variables.map(|variable| format!("--launcher-arg -x --launcher-arg {variable}"));
            let options = files.options().join(" ");
            format!("{} {options} -- {} once", set.join(" "), program("loaded_tensors").display())
        }))
    }

    /// Starts a job of an MPI whose program loads files by a collective call, with two ranks on
    /// each host. The ranks that exchange windows are held.
    pub fn of_ranks(name: &str, flavour: &str, hosts: usize) -> ExchangingJob {
        ExchangingJob::start(name, flavour, hosts, 2, |case, files| {
            let program = case.path(LOADER);
            let build = format!(
                "$MPICC -std=c11 -O1 -g -Wall -Wextra -Werror -Iinclude tests/fixtures/held_load.c -o {program} -Ltarget/lib \
                 -lhostbuf -Wl,-rpath,$PWD/target/lib"
            );
            let built = simulated(1, flavour, &build).ok();
            assert_eq!(built.stderr, "", "{flavour}");
            format!("--size 128M -- {program} {} {}", case.path("held"), files.paths.join(" "))
        })
    }

    /// Starts a job with `ranks` ranks on each host, and waits until a process of each host is
    /// held. `words` returns the end of its command line.
    fn start(
        name: &str,
        flavour: &str,
        hosts: usize,
        ranks: usize,
        words: impl FnOnce(&Scratch, &TensorFiles) -> String,
    ) -> ExchangingJob {
        let files = TensorFiles::new(&format!("{name}-files"), 64 << 20);
        let mark = format!("{name}-{}", std::process::id());
        let case = Scratch::new(name);
        let list: Vec<String> = (0..hosts).map(|host| format!("h{host}:{ranks}")).collect();
        let words = words(&case, &files);
        let mut cluster = Cluster::start(&format!("{name}-cluster"), flavour, hosts);
        cluster.run(&format!(
            "$HOSTBUF run --quiet -n {} --host {} --mpirun $MPIRUN --buffer name={mark},size=1M {words} \
             >{dir}/out 2>{dir}/err; echo $? >{dir}/status",
            hosts * ranks,
            list.join(","),
            dir = case.0.display(),
        ));
        let mut job = ExchangingJob { _cluster: cluster, case, files, socket: String::new() };
        eventually("a process of each host exchanges windows", ARRIVAL, || {
            assert!(!job.case.has("status"), "the job has ended: {}", job.err());
            (0..hosts * ranks).filter(|rank| job.case.has(&format!("held.{rank}"))).count() == hosts
        });
        eventually("the agents' socket", ARRIVAL, || {
            job.socket = socket_of(&format!("name={mark},")).unwrap_or_default();
            !job.socket.is_empty()
        });
        job
    }

    /// Returns the process with this program that has the rank `rank` in its MPI.
    pub fn process(&self, program: &str, rank: usize) -> i32 {
        let mut found = None;
        eventually(program, ARRIVAL, || {
            let all = processes_with(&self.socket).into_iter().map(|(pid, _)| pid);
            found = all.into_iter().find(|&pid| named(pid, program) && of_mpi_rank(pid, rank));
            found.is_some()
        });
        found.expect("the process was found")
    }

    /// Lets the processes go on with the exchange.
    pub fn release(&self) {
        fs::write(self.case.path("held.go"), "").expect("the folder is writable");
    }

    /// Returns the standard output so far.
    pub fn out(&self) -> String {
        fs::read_to_string(self.case.path("out")).unwrap_or_default()
    }

    /// Returns the standard error so far.
    pub fn err(&self) -> String {
        fs::read_to_string(self.case.path("err")).unwrap_or_default()
    }

    /// Waits until the job has ended by itself and nothing of it remains. Returns its status.
    #[track_caller]
    pub fn end(&self) -> i32 {
        let begun = Instant::now();
        let status = || fs::read_to_string(self.case.path("status")).ok()?.trim().parse().ok();
        loop {
            let left = remains(&self.socket, &self.socket);
            if let (Some(status), true) = (status(), left.is_empty()) {
                eprintln!("the job has ended after {:?}", begun.elapsed());
                return status;
            }
            let err = self.err();
            assert!(begun.elapsed() < END, "the job has not ended within {END:?}: {left:#?}\n{err}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the line of the launcher on standard error.
    #[track_caller]
    pub fn line(&self) -> String {
        let err = self.err();
        let lines: Vec<&str> = err.lines().filter(|line| line.starts_with("hostbuf run: ")).collect();
        assert_eq!(lines.len(), 1, "{err}");
        lines[0].to_owned()
    }
}
