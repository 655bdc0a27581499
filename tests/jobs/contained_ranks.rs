//! Ranks of a real MPI in containers of Charliecloud and bubblewrap: the launcher and all ranks in
//! one container, and each rank in a container of its own, with namespaces of the host and of the
//! container. The root directory is that of the host.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::{fs, path::Path};

use hostbuf_tests::{CommandOutput, Scratch, can_simulate, flavours, have, hostbuf, root, skip};

use crate::address::build;
use crate::engines::mpi_fixture;
use crate::other_user::OtherUser;

/// The expected end of a job.
#[derive(Clone, Copy, PartialEq, Eq)]
enum JobEnd {
    /// Both ranks use one buffer.
    Shared,
    /// Both ranks use one buffer, from PID namespaces of their own.
    SharedAcrossPids,
    /// The ranks have no buffer, and one line states that the network namespace is the reason.
    Absent,
    /// No rank reaches the agent of another, and a line states the reason.
    Isolated,
    /// The ranks do not find the engine's process above them, and a line has the remedy.
    Hidden,
}

use JobEnd::{Absent, Hidden, Isolated, Shared, SharedAcrossPids};

/// The jobs: the command lines, and their ends under Open MPI and under MPICH.
const JOBS: [(&str, JobEnd, JobEnd); 15] = [
    // The launcher and the ranks in one container.
    ("$ch $run $out", Shared, Shared),
    ("$ch $mpirun $exec $out", Shared, Shared),
    ("$bw $pid $net $run $out", Shared, Shared),
    ("$bw $pid $net $mpirun $exec $out", Shared, Shared),
    ("$bw $pid $net $ch $run $out", Shared, Shared),
    // Each rank in a container of its own.
    ("$run $ch $out", Shared, Shared),
    ("$run $bw $out", Shared, Shared),
    ("$tcp $run $bw $pid $out", SharedAcrossPids, SharedAcrossPids),
    ("$run $bw $net $out", Absent, Absent),
    ("$mpirun $exec $ch $out", Shared, Shared),
    ("$tcp $mpirun $exec $bw $pid $out", SharedAcrossPids, SharedAcrossPids),
    ("$mpirun $exec $bw $pid $net $out", Absent, Absent),
    // `hostbuf exec` in the container of the rank.
    ("$mpirun $ch $exec $out", Shared, Shared),
    ("$tcp $mpirun $bw $pid $exec $out", SharedAcrossPids, Hidden),
    ("$mpirun $bw $net $hurried $out", Isolated, Isolated),
];

/// The shell functions and variables of the jobs. Some transports over shared memory need one user
/// namespace (UCX, CMA) or one PID namespace (vader) for all ranks.
const SETTINGS: &str = r#"
unset SIMHOSTS_RSH
eval "$(scripts/mpienv $FLAVOUR)" || exit 90
export UCX_POSIX_USE_PROC_LINK=n USER=${USER:-root} tcp="env OMPI_MCA_btl=self,tcp"
ch="ch-run -b /usr -b /etc -b $PWD $IMAGE --"
bw="bwrap --die-with-parent --dev-bind / /" pid="--unshare-pid --proc /proc" net="--unshare-net"
run="$HOSTBUF run --mpirun $MPIRUN -n 2 --size 4M --"
mpirun="$MPIRUN $MPIRUN_FLAGS -np 2" exec="$HOSTBUF exec --size 4M --"
hurried="$HOSTBUF exec --start-timeout 2 --size 4M --"
job() {
    local line=$1 status
    shift
    timeout 60 "$@" < /dev/null > $IMAGE.out 2> $IMAGE.err
    status=$?
    echo "$line: status $status"
    sed "s|^|$line: |" $IMAGE.out
    sed "s|^|$line: said |" $IMAGE.err
}
job 'trial of $ch' $ch true
job 'trial of $bw' $bw $pid $net true
echo "host: pid $(stat -L -c %i /proc/self/ns/pid)"
"#;

/// Makes a root directory whose contents are those of the host, except those of `folders`, which
/// Charliecloud binds.
fn host_image(dir: &Path, folders: &[&Path]) {
    let own = ["usr", "etc", "dev", "proc", "sys", "tmp", "home", "root", "run", "var"].map(Path::new);
    for folder in own.iter().chain(folders) {
        let below = folder.strip_prefix("/").unwrap_or(folder);
        fs::create_dir_all(dir.join(below)).unwrap();
    }
    for name in ["bin", "lib", "lib32", "lib64", "sbin"] {
        if Path::new("/usr").join(name).exists() {
            symlink(Path::new("usr").join(name), dir.join(name)).unwrap();
        }
    }
    // Charliecloud mounts files of the host over these.
    for file in ["passwd", "group", "hosts", "resolv.conf"] {
        fs::write(dir.join("etc").join(file), "").unwrap();
    }
}

/// The lines that a job has printed.
#[derive(Debug, Default)]
struct JobLines {
    status: String,
    ranks: Vec<String>,
    said: Vec<String>,
}

impl JobLines {
    /// Returns the lines by hostbuf on standard error.
    fn own(&self) -> Vec<&String> {
        self.said.iter().filter(|line| line.starts_with("hostbuf")).collect()
    }
}

/// Returns the lines of each job in the output of the script.
fn by_job(output: &CommandOutput) -> BTreeMap<&str, JobLines> {
    let mut jobs: BTreeMap<&str, JobLines> = BTreeMap::new();
    for (job, line) in output.stdout.lines().filter_map(|line| line.split_once(": ")) {
        let lines = jobs.entry(job).or_default();
        if let Some(status) = line.strip_prefix("status ") {
            status.clone_into(&mut lines.status);
        } else if let Some(line) = line.strip_prefix("said ") {
            lines.said.push(line.to_owned());
        } else {
            lines.ranks.push(line.to_owned());
        }
    }
    jobs
}

/// Checks the end of a job whose host has the PID namespace `host`.
fn check(what: &str, lines: &JobLines, end: JobEnd, host: &str) {
    let own = lines.own();
    let all_own_lines_have = |part: &str| own.iter().all(|line| line.contains(part));
    match end {
        Shared | SharedAcrossPids => {
            assert_eq!((&*lines.status, own.len(), lines.ranks.len()), ("0", 0, 2), "{what}: {lines:?}");
            let mut ranks = lines.ranks.clone();
            ranks.sort();
            for (rank, line) in ranks.iter().enumerate() {
                let expected = format!("rank {rank} of 2, buffer 0x0000550000000000 of 2 ranks, ");
                assert!(line.starts_with(&expected), "{what}: {lines:?}");
            }
            let pids: Vec<_> =
                ranks.iter().filter_map(|line| line.split_once(", pid ")?.1.split(' ').next()).collect();
            assert_eq!(pids[0] != pids[1], end == SharedAcrossPids, "{what}: {lines:?}");
            assert_eq!(format!("pid {}", pids[0]) != host, what.contains("$pid"), "{what}: {lines:?}");
        }
        Absent => {
            // Some MPIs cannot start either.
            assert_eq!(own.len(), 1, "{what}: {lines:?}");
            assert!(all_own_lines_have("network namespace of its own"), "{what}: {lines:?}");
            assert!(lines.ranks.iter().all(|line| line.contains("buffer absent")), "{what}: {lines:?}");
        }
        Isolated => {
            // Each rank has an agent of its own, and an engine may let the second one print, too.
            assert_eq!((&*lines.status, lines.ranks.len()), ("87", 0), "{what}: {lines:?}");
            assert!((1..=2).contains(&own.len()), "{what}: {lines:?}");
            assert!(
                all_own_lines_have("seems to be in a different network namespace from the engine"),
                "{what}: {lines:?}"
            );
            assert!(all_own_lines_have("no `bwrap --unshare-net`"), "{what}: {lines:?}");
        }
        Hidden => {
            assert_eq!((&*lines.status, lines.ranks.len()), ("86", 0), "{what}: {lines:?}");
            assert!(!own.is_empty(), "{what}: {lines:?}");
            assert!(
                all_own_lines_have("put `hostbuf exec` in front of the container's command"),
                "{what}: {lines:?}"
            );
        }
    }
}

/// Runs all jobs under the MPI `flavour`. The simulated host ends what a failed job leaves.
fn all_jobs(flavour: &str, end: impl Fn(&(&str, JobEnd, JobEnd)) -> JobEnd) {
    let tools: Vec<_> =
        [("ch-run", "$ch"), ("bwrap", "$bw")].into_iter().filter(|(tool, _)| have(tool)).collect();
    if tools.is_empty() || !can_simulate() || !flavours().iter().any(|usable| usable == flavour) {
        return;
    }
    let dir = Scratch::new(&format!("contained-ranks-{flavour}"));
    let image = dir.0.join("image");
    host_image(&image, &[root()]);
    let mut script = format!("{SETTINGS}{}", mpi_fixture("one_buffer"));
    for (line, ..) in JOBS {
        script += &format!("job '{line}' {line}\n");
    }
    let mut command = Command::new(root().join("scripts/simhosts"));
    command.args(["1", "--", "bash", "-c", &script]).current_dir(root());
    command.env("HOSTBUF", hostbuf()).env("FLAVOUR", flavour).env("IMAGE", image);
    let output = CommandOutput::of(&mut command).ok();
    let jobs = by_job(&output);
    let host = &jobs["host"].ranks[0];
    let mut usable =
        tools.iter().map(|(tool, variable)| (*tool, *variable, &jobs[&*format!("trial of {variable}")]));
    let unusable: Vec<&str> = usable
        .by_ref()
        .filter(|(_, _, trial)| trial.status != "0")
        .map(|(tool, variable, trial)| {
            skip(&format!("{tool}: {}", trial.said.first().map_or("", String::as_str)));
            variable
        })
        .collect();
    let missing = |line: &str| {
        ["$ch", "$bw"].iter().any(|variable| {
            line.contains(variable)
                && (unusable.contains(variable) || !tools.iter().any(|(_, tool)| tool == variable))
        })
    };
    for job in JOBS.iter().filter(|(line, ..)| !missing(line)) {
        check(job.0, &jobs[job.0], end(job), host);
    }
}

#[test]
fn ranks_of_open_mpi_in_containers_share_a_buffer_or_have_a_reason() {
    all_jobs("openmpi4", |(_, end, _)| *end);
}

#[test]
fn ranks_of_mpich_in_containers_share_a_buffer_or_have_a_reason() {
    all_jobs("mpich4", |(_, _, end)| *end);
}

#[test]
fn an_ordinary_user_starts_containers_with_a_buffer() {
    let Some(other) = OtherUser::new("containers of an ordinary user") else { return };
    let program = other.program(&build("cc", "variables.c", &[]).unwrap());
    let folder = other.hostbuf().parent().unwrap().to_owned();
    let dir = other.own_folder("image");
    host_image(&dir, &[&folder]);
    let folder = folder.to_str().unwrap();
    let charliecloud = ["ch-run", "-b", "/usr", "-b", "/etc", "-b", folder, dir.to_str().unwrap(), "--"];
    let bubblewrap = ["bwrap", "--dev-bind", "/", "/", "--unshare-pid", "--proc", "/proc", "--"];
    let run =
        [other.hostbuf().to_str().unwrap(), "run", "--launcher", "local", "-n", "2", "--size", "4M", "--"]
            .map(str::to_owned);
    let run: Vec<&str> = run.iter().map(String::as_str).collect();
    let output = |words: &[&[&str]]| {
        let words = words.concat();
        CommandOutput::of(other.command(words[0]).args(&words[1..]).env("USER", "nobody"))
    };
    for container in [&charliecloud[..], &bubblewrap] {
        if !have(container[0]) {
            continue;
        }
        let trial = output(&[container, &["true"]]);
        if trial.status != 0 {
            skip(&format!(
                "{} of an ordinary user: {}",
                container[0],
                trial.stderr.lines().next().unwrap_or("")
            ));
            continue;
        }
        crate::without_buffer::all_used(&output(&[&run, container, &[&program]]).ok(), 2);
        crate::without_buffer::all_used(&output(&[container, &run, &[&program]]).ok(), 2);
    }
}
