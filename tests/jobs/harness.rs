//! Functions that run jobs, and that build the programs of those jobs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub use hostbuf_tests::skip;

/// The status and the output of a command that ended.
#[derive(Debug)]
pub struct Outcome {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Outcome {
    pub fn of(command: &mut Command) -> Outcome {
        use std::os::unix::process::ExitStatusExt;
        let output = command.stdin(Stdio::null()).output().expect("the command starts");
        let status = output.status.code().unwrap_or_else(|| 128 + output.status.signal().unwrap_or(0));
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Outcome { status, stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// Panics with everything that was printed unless the command succeeded.
    #[track_caller]
    pub fn ok(self) -> Outcome {
        assert!(
            self.status == 0,
            "status {}\nstdout:\n{}\nstderr:\n{}",
            self.status,
            self.stdout,
            self.stderr
        );
        self
    }

    /// Returns the lines of standard error, except those about progress, which appear on slow
    /// machines.
    pub fn said(&self) -> Vec<&str> {
        self.stderr.lines().filter(|line| !line.starts_with("hostbuf: taking memory")).collect()
    }

    /// Returns the lines of standard output that begin with `prefix`, without it.
    pub fn lines(&self, prefix: &str) -> Vec<String> {
        self.stdout.lines().filter_map(|l| l.strip_prefix(prefix)).map(str::to_owned).collect()
    }
}

/// Returns the repository's folder.
pub fn root() -> PathBuf {
    hostbuf_tests::root().to_owned()
}

/// Returns the path of the command under test.
pub fn hostbuf() -> PathBuf {
    hostbuf_tests::program("hostbuf")
}

/// Runs `hostbuf` with `arguments` on this host, outside of simulated hosts.
pub fn run(arguments: &[&str]) -> Outcome {
    Outcome::of(Command::new(hostbuf()).args(arguments))
}

/// Runs `ranks` ranks of `program` by `hostbuf run` without MPI, with a buffer of `size` and the
/// options `more`.
pub fn local(ranks: usize, size: &str, more: &[&str], program: &[&str]) -> Outcome {
    let mut command = Command::new(hostbuf());
    command.args(["run", "--launcher", "local", "-n", &ranks.to_string(), "--size", size]);
    Outcome::of(command.args(more).arg("--").args(program))
}

/// Runs a shell script on the first of `hosts` simulated hosts (h0, h1, ...), in the repository's
/// folder. scripts/mpienv sets up the MPI `flavour` ($MPIRUN, $MPIRUN_FLAGS, ...); `$HOSTBUF` is
/// the command under test.
pub fn simulated(hosts: usize, flavour: &str, script: &str) -> Outcome {
    Outcome::of(&mut simulated_command(hosts, flavour, script))
}

/// Returns the command that [`simulated`] runs.
pub fn simulated_command(hosts: usize, flavour: &str, script: &str) -> Command {
    let script = format!("set -e\neval \"$(scripts/mpienv {flavour})\"\nset +e\n{script}\n");
    let mut command = Command::new(root().join("scripts/simhosts"));
    command.arg(hosts.to_string()).args(["--", "bash", "-c", &script]);
    command.current_dir(root()).env("HOSTBUF", hostbuf());
    command
}

/// Lists the MPIs of scripts/mpienv that are usable here and have an agent (scripts/build).
pub fn flavours() -> Vec<String> {
    let listed = Outcome::of(Command::new(root().join("scripts/mpienv")).args(["list", "-v"])).ok();
    for line in listed.stderr.lines() {
        skip(&format!("MPI {line}"));
    }
    let has_agent = |flavour: &String| {
        let there = root().join(format!("target/libexec/hostbuf/hostbuf-agent-{flavour}")).is_file();
        if !there {
            skip(&format!("MPI {flavour}: no agent was built for it (scripts/build)"));
        }
        there
    };
    listed.stdout.lines().map(str::to_owned).filter(has_agent).collect()
}

/// Returns true if hosts can be simulated here, and records a skip if not.
pub fn can_simulate() -> bool {
    let able = Outcome::of(Command::new(root().join("scripts/simhosts")).arg("--check")).status == 0;
    if !able {
        skip("simulated hosts: namespaces are not allowed here");
    }
    able
}

/// Compiles tests/fixtures/`source` by `compiler` with `flags`, once for each different text and
/// flags.
pub fn fixture(compiler: &str, source: &str, flags: &[&str]) -> Result<PathBuf, String> {
    let path = root().join("tests/fixtures").join(source);
    let text = fs::read(&path).expect("the fixture's source is there");
    let mut key = format!("{compiler} {flags:?} ").into_bytes();
    key.extend(&text);
    let digest =
        key.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    let dir = root().join("target/fixtures");
    fs::create_dir_all(&dir).expect("target/ is writable");
    let stem = path.file_stem().expect("a file").to_string_lossy().into_owned();
    let program = dir.join(format!("{stem}-{digest:016x}"));
    if program.exists() {
        return Ok(program);
    }
    let fresh = dir.join(format!(".{stem}-{digest:016x}-{}", std::process::id()));
    // Flags that begin with -l must follow the source file.
    let built = Command::new(compiler).args(["-O1", "-g", "-o"]).arg(&fresh).arg(&path).args(flags).output();
    let built = built.map_err(|e| format!("{compiler}: {e}"))?;
    if !built.status.success() {
        return Err(format!("{compiler} {flags:?}: {}", String::from_utf8_lossy(&built.stderr)));
    }
    // Several tests may build the same fixture. The last rename wins, and all results are equal.
    fs::rename(&fresh, &program).expect("target/ is writable");
    Ok(program)
}

/// Polls `condition` every 5 ms until it holds; panics with `what` after `limit`.
#[track_caller]
pub fn eventually(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Lists the processes with `mark` in their command line or environment: pid and command line.
pub fn processes_with(mark: &str) -> Vec<(i32, String)> {
    let own = std::process::id() as i32;
    let entries = fs::read_dir("/proc").expect("/proc is there").flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok()).filter(|&p| p != own);
    let read = |pid: i32, what: &str| {
        fs::read(Path::new("/proc").join(pid.to_string()).join(what)).unwrap_or_default()
    };
    let found = |pid: i32| {
        let all = [read(pid, "cmdline"), read(pid, "environ")].concat();
        let text = String::from_utf8_lossy(&all).into_owned();
        let line = String::from_utf8_lossy(&read(pid, "cmdline")).replace('\0', " ");
        text.contains(mark).then_some((pid, line))
    };
    pids.filter_map(found).collect()
}
