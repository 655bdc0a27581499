//! Which MPI could start a job here, and whether there is an agent for it.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::slurm;
use crate::finding::Finding;
use crate::installation;

/// The names under which an MPI's launcher is found; Debian's beside the usual.
const NAMES: [&str; 8] = [
    "mpirun",
    "mpiexec",
    "mpirun.openmpi",
    "mpiexec.openmpi",
    "mpirun.mpich",
    "mpiexec.mpich",
    "mpiexec.hydra",
    "srun",
];

pub fn lines() -> Vec<Finding> {
    let mut lines: Vec<Finding> = launchers().iter().map(line).collect();
    if lines.is_empty() {
        let says = "no mpirun, mpiexec or srun in PATH: jobs of this host alone (--launcher local)";
        let line = Finding::note("MPI", says);
        lines.push(line.mend("apt-get install openmpi-bin (or mpich), or module load your MPI"));
    }
    lines.push(allocation());
    lines.extend(in_path("scontrol").map(|scontrol| slurm::line(&scontrol, answer_of)));
    lines
}

/// A launcher, and every name under which PATH has it.
struct Launcher {
    path: PathBuf,
    names: Vec<String>,
    kind: Result<Kind, String>,
}

/// The launchers in PATH, each once: mpirun and mpiexec of one MPI are one file, or two that say the same.
fn launchers() -> Vec<Launcher> {
    let mut found: Vec<(PathBuf, Launcher)> = Vec::new();
    for name in NAMES {
        let Some(path) = in_path(name) else { continue };
        let real = path.canonicalize().unwrap_or_else(|_| path.clone());
        if let Some((_, launcher)) = found.iter_mut().find(|(other, _)| *other == real) {
            launcher.names.push(name.into());
            continue;
        }
        let kind = identify(&path);
        let same = |(other, launcher): &&mut (PathBuf, Launcher)| {
            kind.is_ok() && launcher.kind == kind && other.parent() == real.parent()
        };
        match found.iter_mut().find(same) {
            Some((_, launcher)) => launcher.names.push(name.into()),
            None => found.push((real, Launcher { path, names: vec![name.into()], kind })),
        }
    }
    found.into_iter().map(|(_, launcher)| launcher).collect()
}

fn in_path(name: &str) -> Option<PathBuf> {
    use nix::unistd::{AccessFlags, access};
    let path = std::env::var_os("PATH")?;
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(name));
    places.find(|p| p.is_file() && access(p, AccessFlags::X_OK).is_ok())
}

/// Whose launcher it is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kind {
    /// For people.
    name: &'static str,
    version: String,
    /// The agent's flavour, where there is one of its own.
    flavour: Option<String>,
}

/// Reads what a launcher prints for `--version`.
fn kind(text: &str) -> Option<Kind> {
    let after = |mark: &str| {
        let rest = &text[text.find(mark)? + mark.len()..];
        rest.split_whitespace().next().map(str::to_owned)
    };
    let made = |name: &'static str, family: Option<&str>, version: String| {
        let major: String = version.chars().take_while(char::is_ascii_digit).collect();
        let flavour = family.filter(|_| !major.is_empty()).map(|f| format!("{f}{major}"));
        Some(Kind { name, version, flavour })
    };
    if let Some(version) = after("(Open MPI)").or_else(|| after("(OpenRTE)")) {
        return made("Open MPI", Some("openmpi"), version);
    }
    if text.contains("Intel(R) MPI") {
        return made("Intel MPI", None, after("Version").unwrap_or_default());
    }
    if text.contains("HYDRA") {
        let name = if text.to_ascii_lowercase().contains("mvapich") { "MVAPICH" } else { "MPICH" };
        return made(name, (name == "MPICH").then_some("mpich"), after("Version:").unwrap_or_default());
    }
    let first = text.lines().next()?;
    first
        .starts_with("slurm")
        .then(|| first.split_whitespace().nth(1).unwrap_or_default().to_owned())
        .and_then(|version| made("Slurm", None, version))
}

/// Whose launcher `path` is, or why that is not known.
fn identify(path: &Path) -> Result<Kind, String> {
    let text = version_of(path)?;
    kind(&text).ok_or_else(|| {
        let first = text.lines().map(str::trim).find(|l| !l.is_empty()).unwrap_or("nothing");
        format!("no MPI that is known here; it says \"{}\"", clip(first))
    })
}

fn line(launcher: &Launcher) -> Finding {
    let name = launcher.names[0].clone();
    let place = match &launcher.names[1..] {
        [] => launcher.path.display().to_string(),
        list => format!("{}, also {}", launcher.path.display(), list.join(", ")),
    };
    let line = match &launcher.kind {
        Err(why) => Finding::note(name, format!("{place}: {why}")),
        Ok(kind) => with_agent(name, kind, &place),
    };
    line.value("path", launcher.path.display().to_string()).value("names", launcher.names.clone())
}

/// A launcher that `hostbuf run` knows needs an agent that was built for its MPI.
fn with_agent(name: String, kind: &Kind, place: &str) -> Finding {
    let what = format!("{} {} ({place})", kind.name, kind.version);
    // Slurm starts whichever MPI it was built for.
    let all = ["openmpi4", "openmpi5", "mpich4", "mpich5"].map(String::from);
    let flavours = if kind.name == "Slurm" { &all[..] } else { kind.flavour.as_slice() };
    let found = agent(flavours);
    let line = match &found {
        Some(agent) => Finding::ok(name, format!("{what}; agent {}", agent.display())),
        None => {
            let flavour = kind.flavour.as_deref().map_or(String::new(), |f| format!("-{f}"));
            let places = "beside this program or in ../libexec/hostbuf";
            let says = format!("{what}; hostbuf run finds no hostbuf-agent{flavour} {places}");
            Finding::lacks(name, says).mend(installation::mend(kind.flavour.as_deref().unwrap_or_default()))
        }
    };
    line.value("mpi", kind.name)
        .value("version", kind.version.clone())
        .value("flavour", kind.flavour.clone())
        .value("agent", found.map(|path| path.display().to_string()))
}

/// The agent for one of `flavours`, or the one for all.
fn agent(flavours: &[String]) -> Option<PathBuf> {
    let executable = std::env::current_exe().ok()?;
    let beside = executable.parent().unwrap_or(Path::new("/"));
    let folders = [beside.to_owned(), beside.join("../libexec/hostbuf")];
    let names = flavours.iter().map(|f| format!("hostbuf-agent-{f}")).chain(["hostbuf-agent".into()]);
    let places = names.flat_map(|name| folders.each_ref().map(|folder| folder.join(&name)));
    places.filter(|p| p.is_file()).find_map(|p| p.canonicalize().ok())
}

const PATIENCE: Duration = Duration::from_secs(10);
/// More than any launcher says of its version, and less than a pipe holds: nobody has to read while it writes.
const ENOUGH: u64 = 32 << 10;

/// What `path --version` prints.
fn version_of(path: &Path) -> Result<String, String> {
    answer_of(path, &["--version"])
}

/// Returns what `path` prints when it is called with `arguments`.
fn answer_of(path: &Path, arguments: &[&str]) -> Result<String, String> {
    let asked = arguments.join(" ");
    let mut child = Command::new(path)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("it does not start: {e}"))?;
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{asked} did not answer within {} s", PATIENCE.as_secs()));
            }
        }
    };
    let mut text = String::new();
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    for pipe in [stdout.map(|p| Box::new(p) as Box<dyn Read>), stderr.map(|p| Box::new(p) as Box<dyn Read>)] {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            let _ = pipe.take(ENOUGH).read_to_end(&mut bytes);
        }
        text.push_str(&String::from_utf8_lossy(&bytes));
    }
    if status.success() {
        return Ok(text);
    }
    let last = text.lines().map(str::trim).rfind(|l| !l.is_empty()).unwrap_or("nothing").to_owned();
    Err(format!("{asked} fails and says \"{}\"", clip(&last)))
}

fn clip(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(100).collect()
}

/// Slurm says in the environment what a step of it may use.
fn allocation() -> Finding {
    const NAME: &str = "Slurm allocation";
    let variable = |name: &str| std::env::var(name).ok();
    let Some(job) = variable("SLURM_JOB_ID") else {
        return Finding::ok(NAME, "this is not inside one: hosts come from --host or --hostfile")
            .value("job", serde_json::Value::Null);
    };
    let hosts = variable("SLURM_JOB_NODELIST").unwrap_or_else(|| "?".into());
    let says = format!("job {job} on {hosts}: both steps of hostbuf run with --overlap");
    let line = match variable("SLURM_MEM_PER_NODE") {
        Some(mib) => {
            Finding::ok(NAME, format!("{says}; {mib} MiB of memory on each host")).value("memory_mib", mib)
        }
        None => Finding::ok(NAME, says),
    };
    line.value("job", job).value("hosts", hosts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_told_by_what_they_say() {
        let hydra = "HYDRA build details:\n    Version:                                 4.0.2\n    CC: gcc\n";
        for (text, name, version, flavour) in [
            ("mpirun (Open MPI) 4.1.4\n\nReport bugs to x\n", "Open MPI", "4.1.4", Some("openmpi4")),
            ("mpirun.openmpi (OpenRTE) 4.1.4\n", "Open MPI", "4.1.4", Some("openmpi4")),
            ("mpirun (Open MPI) 5.0.6rc1\n", "Open MPI", "5.0.6rc1", Some("openmpi5")),
            (hydra, "MPICH", "4.0.2", Some("mpich4")),
            (
                "Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005\n",
                "Intel MPI",
                "2021.11",
                None,
            ),
            ("slurm-wlm 22.05.8\n", "Slurm", "22.05.8", None),
            ("slurm 23.11.4\n", "Slurm", "23.11.4", None),
        ] {
            let found = kind(text).unwrap();
            assert_eq!(
                (found.name, &*found.version, found.flavour.as_deref()),
                (name, version, flavour),
                "{text}"
            );
        }
        for text in ["", "usage: mpirun [options]\n", "mpirun (Open MPI)"] {
            assert_eq!(kind(text), None, "{text}");
        }
    }
}
