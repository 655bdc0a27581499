//! The launch commands of the engines on this host, and their agents.

use std::path::{Path, PathBuf};

use crate::command_output::{clip, output_of};
use crate::engines::{self, LaunchCommand};
use crate::finding::Finding;
use crate::{agent_program, installation, search_path};

/// Checks the launch commands in PATH, and then what each engine checks.
pub fn lines() -> Vec<Finding> {
    let mut findings: Vec<Finding> = found().iter().map(finding).collect();
    if findings.is_empty() {
        let others = engines::without_mpirun_commands();
        let names: Vec<&str> = engines::COMMON_COMMANDS.iter().copied().chain(others).collect();
        let (last, first) = names.split_last().expect("there are launch commands");
        let says =
            format!("no {} or {last} in PATH: only jobs on this host (--launcher local)", first.join(", "));
        let mut packages = engines::ALL.iter().filter_map(|engine| engine.package());
        let first = packages.next().unwrap_or_default();
        let others = packages.map(|other| format!(" (or {other})")).collect::<String>();
        let remedy = format!("apt-get install {first}{others}, or module load your MPI");
        findings.push(Finding::note("MPI", says).mend(remedy));
    }
    findings.extend(engines::ALL.iter().flat_map(|engine| engine.check(&output_of)));
    findings
}

/// An executable file in PATH with all names of it.
struct Found {
    path: PathBuf,
    names: Vec<String>,
    /// The launch command of an engine, or a clause that quotes an unknown version.
    command: Result<LaunchCommand, String>,
}

/// Returns the launch commands in PATH, each once: mpirun and mpiexec of one MPI are one file, or
/// two with one version.
fn found() -> Vec<Found> {
    let mut list: Vec<(PathBuf, Found)> = Vec::new();
    let own = engines::ALL.iter().flat_map(|engine| engine.commands());
    for &name in engines::COMMON_COMMANDS.iter().chain(own) {
        let Some(path) = search_path::find(name) else { continue };
        let real = path.canonicalize().unwrap_or_else(|_| path.clone());
        if let Some((_, found)) = list.iter_mut().find(|(other, _)| *other == real) {
            found.names.push(name.into());
            continue;
        }
        let command = output_of(&path, &["--version"]).and_then(|text| identify(&path, &text));
        let release =
            |command: &Result<LaunchCommand, String>| command.as_ref().ok().map(|c| c.release.clone());
        let same = |(other, found): &&mut (PathBuf, Found)| {
            command.is_ok() && release(&found.command) == release(&command) && other.parent() == real.parent()
        };
        match list.iter_mut().find(same) {
            Some((_, found)) => found.names.push(name.into()),
            None => list.push((real, Found { path, names: vec![name.into()], command })),
        }
    }
    list.into_iter().map(|(_, found)| found).collect()
}

/// Identifies the launch command at `path` by the output of its option `--version`.
///
/// # Errors
/// A clause that quotes an unknown output.
fn identify(path: &Path, version: &str) -> Result<LaunchCommand, String> {
    for &engine in engines::ALL {
        if let Some(release) = engine.recognize(version) {
            return Ok(LaunchCommand { engine, path: path.to_owned(), release });
        }
    }
    let first = version.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("nothing");
    Err(format!("not an MPI that hostbuf knows; its version is \"{}\"", clip(first)))
}

fn finding(found: &Found) -> Finding {
    let name = found.names[0].clone();
    let place = match &found.names[1..] {
        [] => found.path.display().to_string(),
        list => format!("{}, also {}", found.path.display(), list.join(", ")),
    };
    let finding = match &found.command {
        Err(why) => Finding::note(name, format!("{place}: {why}")),
        Ok(command) => agent(name, command, &place),
    };
    finding.value("path", found.path.display().to_string()).value("names", found.names.clone())
}

/// Checks whether the agent is installed that the jobs of a launch command need.
fn agent(name: String, command: &LaunchCommand, place: &str) -> Finding {
    let release = &command.release;
    let product = format!("{} {} ({place})", release.name, release.version);
    let flavours = agent_program::flavours(command);
    let agent = agent_program::installed(&flavours).and_then(|path| path.canonicalize().ok());
    let finding = match &agent {
        Some(agent) => Finding::ok(name, format!("{product}; agent {}", agent.display())),
        None => {
            let places = "beside this program or in ../libexec/hostbuf";
            let names = agent_program::names(&flavours);
            let says = format!("{product}; hostbuf run finds no {names} {places}");
            let package =
                agent_program::agents_package(command).map(|package| format!("apt-get install {package}"));
            let lacks = package.into_iter().fold(Finding::lacks(name, says), Finding::mend);
            lacks.mend(installation::mend(&agent_program::build_argument(command)))
        }
    };
    finding
        .value("mpi", release.name)
        .value("version", release.version.clone())
        .value("flavour", release.flavour.clone())
        .value("agent", agent.map(|path| path.display().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launch_commands_are_recognized_by_their_version() {
        let hydra = "HYDRA build details:\n    Version:                                 4.0.2\n    CC: gcc\n";
        for (text, name, version, flavour) in [
            ("mpirun (Open MPI) 4.1.4\n\nReport bugs to x\n", "Open MPI", "4.1.4", Some("openmpi4")),
            ("mpirun.openmpi (OpenRTE) 4.1.4\n", "Open MPI", "4.1.4", Some("openmpi4")),
            ("mpirun (Open MPI) 5.0.6rc1\n", "Open MPI", "5.0.6rc1", Some("openmpi5")),
            (hydra, "MPICH", "4.0.2", Some("mpich4")),
            ("slurm-wlm 22.05.8\n", "Slurm", "22.05.8", None),
            ("slurm 23.11.4\n", "Slurm", "23.11.4", None),
        ] {
            let release = identify(Path::new("/x"), text).unwrap().release;
            assert_eq!(
                (release.name, &*release.version, release.flavour.as_deref()),
                (name, version, flavour),
                "{text}"
            );
        }
        for text in ["", "usage: mpirun [options]\n", "mpirun (Open MPI)"] {
            assert!(identify(Path::new("/x"), text).is_err(), "{text}");
        }
    }
}
