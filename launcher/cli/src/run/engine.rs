//! What starts the processes of a job: an MPI's mpirun, Slurm's srun, or this program itself.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;
use hostbuf::{Error, Result};

use crate::installation;

/// `--launcher`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Choice {
    /// The mpirun of the program's own MPI where its libraries tell, else the first mpirun; without one srun in an
    /// allocation, else local
    #[default]
    Auto,
    /// No MPI: the ranks of this host, started by hostbuf itself
    Local,
    /// Open MPI's mpirun (4.1, 5)
    Openmpi,
    /// MPICH's mpiexec (Hydra)
    Mpich,
    /// Slurm's srun, inside an allocation
    Slurm,
}

/// An engine that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    Local,
    OpenMpi { mpirun: PathBuf, major: u32 },
    Mpich { mpirun: PathBuf, major: u32 },
    Slurm { srun: PathBuf },
}

impl Engine {
    /// Finds what `choice` means here. `mpirun`: the one to use, where the user names it. `needed`: the libraries that
    /// the program names.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with what to do, when it is not there.
    pub(super) fn find(choice: Choice, mpirun: Option<&Path>, needed: &[String]) -> Result<Engine> {
        let none = |what: &str, why: &str| Err(Error::Unsupported { what: what.into(), why: why.into() });
        let in_allocation = std::env::var_os("SLURM_JOB_ID").is_some();
        let srun = || in_path("srun").filter(|_| in_allocation);
        if choice == Choice::Local {
            return Ok(Engine::Local);
        }
        if choice == Choice::Slurm {
            if !in_allocation {
                let why = "this is not inside a Slurm allocation, and queueing twice (agents and program) could wait \
                           for ever; use `salloc` or `sbatch` first, and `hostbuf run` inside";
                return none("--launcher slurm", why);
            }
            return match in_path("srun") {
                Some(srun) => Ok(Engine::Slurm { srun }),
                None => none("--launcher slurm", "srun is not in PATH"),
            };
        }
        let candidates: Vec<PathBuf> = match mpirun {
            Some(path) if path.is_absolute() || path.components().count() > 1 => vec![path.to_owned()],
            Some(name) => in_path(&name.to_string_lossy()).into_iter().collect(),
            None => {
                let names: &[&str] = match choice {
                    Choice::Openmpi => &["mpirun", "mpiexec", "mpirun.openmpi"],
                    Choice::Mpich => &["mpirun", "mpiexec", "mpiexec.hydra", "mpirun.mpich"],
                    _ => &["mpirun", "mpiexec", "mpirun.openmpi", "mpiexec.hydra", "mpirun.mpich"],
                };
                names.iter().filter_map(|n| in_path(n)).collect()
            }
        };
        let mut engines = candidates.iter().filter_map(|path| identify(path));
        let found = match choice {
            // The mpirun of another MPI would start every rank as a job of its own.
            Choice::Auto if mpirun.is_none() => match mpi_of(needed) {
                Some(own) => engines.find(|engine| engine.is(own)),
                None => engines.next(),
            },
            Choice::Auto => engines.next(),
            _ => engines.find(|engine| engine.is(choice)),
        };
        if let Some(engine) = found {
            return Ok(engine);
        }
        match choice {
            Choice::Auto if mpirun.is_none() => match (srun(), mpi_of(needed)) {
                (Some(srun), _) => Ok(Engine::Slurm { srun }),
                (None, None) => Ok(Engine::Local),
                (None, Some(own)) => {
                    let name = name_of(own);
                    let option = if own == Choice::Mpich { "mpich" } else { "openmpi" };
                    let why = format!(
                        "the program names the libraries of {name}, and no mpirun of {name} is in PATH; load that MPI's \
                         environment, or name its mpirun with --mpirun and --launcher {option}"
                    );
                    none("a job of this program", &why)
                }
            },
            _ => {
                let name = mpirun.map_or("no mpirun of this MPI is in PATH".into(), |m| {
                    format!("{} is no mpirun of Open MPI or MPICH that this can use", m.display())
                });
                none(
                    &format!(
                        "--launcher {}",
                        choice.to_possible_value().map_or("?".into(), |v| v.get_name().to_owned())
                    ),
                    &name,
                )
            }
        }
    }

    fn is(&self, choice: Choice) -> bool {
        match self {
            Engine::Local => choice == Choice::Local,
            Engine::OpenMpi { .. } => choice == Choice::Openmpi,
            Engine::Mpich { .. } => choice == Choice::Mpich,
            Engine::Slurm { .. } => choice == Choice::Slurm,
        }
    }

    /// The MPI whose libraries the program names, if this is the launcher of none or of another.
    pub(super) fn is_foreign_to(&self, needed: &[String]) -> Option<&'static str> {
        let own = mpi_of(needed)?;
        let fits = self.is(own) || matches!(self, Engine::Slurm { .. });
        (!fits).then(|| name_of(own))
    }

    /// The agent that was built for this engine.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the places that were looked at.
    pub(super) fn agent(&self, given: Option<&Path>) -> Result<PathBuf> {
        if let Some(path) = given {
            return absolute(path);
        }
        let names: Vec<String> = match self {
            Engine::Local => return absolute(&std::env::current_exe().unwrap_or_default()),
            Engine::OpenMpi { major, .. } => vec![format!("hostbuf-agent-openmpi{major}")],
            Engine::Mpich { major, .. } => vec![format!("hostbuf-agent-mpich{major}")],
            // Any MPI that Slurm can start will do; see Engine::slurm_mpi.
            Engine::Slurm { .. } => ["openmpi4", "openmpi5", "mpich4", "mpich5"]
                .iter()
                .map(|f| format!("hostbuf-agent-{f}"))
                .collect(),
        };
        let executable = std::env::current_exe().unwrap_or_default();
        let bin = executable.parent().unwrap_or(Path::new("/"));
        let folders = [bin.to_owned(), bin.join("../libexec/hostbuf")];
        let all = names.iter().map(String::as_str).chain(["hostbuf-agent"]);
        for name in all {
            if let Some(found) = folders.iter().map(|f| f.join(name)).find(|p| p.is_file()) {
                return absolute(&found);
            }
        }
        Err(Error::Unsupported {
            what: format!("an agent for {}", self.name()),
            why: format!(
                "{} is neither in {} nor in ../libexec/hostbuf: `{}` in hostbuf's sources builds it; --agent names another, \
                 and --launcher local needs none",
                names.join(" or "),
                bin.display(),
                installation::mend(if names.len() == 1 {
                    names[0].trim_start_matches("hostbuf-agent-")
                } else {
                    ""
                })
            ),
        })
    }

    /// For messages.
    pub(super) fn name(&self) -> String {
        match self {
            Engine::Local => "local".into(),
            Engine::OpenMpi { major, .. } => format!("Open MPI {major}"),
            Engine::Mpich { major, .. } => format!("MPICH {major}"),
            Engine::Slurm { .. } => "Slurm".into(),
        }
    }
}

fn absolute(path: &Path) -> Result<PathBuf> {
    let found = path.canonicalize();
    found.map_err(|source| Error::Os { doing: format!("looking for {}", path.display()), source })
}

/// A program in `PATH`.
pub(super) fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|p| p.is_file() && nix::unistd::access(p, nix::unistd::AccessFlags::X_OK).is_ok())
}

fn name_of(mpi: Choice) -> &'static str {
    if mpi == Choice::Mpich { "MPICH" } else { "Open MPI" }
}

/// The MPI whose libraries a program names: MPICH and all that keep its interface have version 12, Open MPI 40.
fn mpi_of(needed: &[String]) -> Option<Choice> {
    needed.iter().filter(|name| name.starts_with("libmpi")).find_map(|name| {
        let (_, version) = name.split_once(".so.")?;
        match version.split('.').next()? {
            "12" => Some(Choice::Mpich),
            "40" => Some(Choice::Openmpi),
            _ => None,
        }
    })
}

/// Which MPI an mpirun belongs to: by what it prints of its version.
fn identify(mpirun: &Path) -> Option<Engine> {
    // Debian's alternatives and most installations are links to a program whose name tells; 4.1 is the only series
    // of Open MPI that has an orterun and is supported.
    let target = mpirun.canonicalize().ok()?;
    if target.file_name()?.to_str()? == "orterun" {
        return Some(Engine::OpenMpi { mpirun: mpirun.to_owned(), major: 4 });
    }
    let output = Command::new(mpirun).arg("--version").stdin(std::process::Stdio::null()).output().ok()?;
    engine_of(mpirun, &String::from_utf8_lossy(&output.stdout))
}

fn engine_of(mpirun: &Path, version: &str) -> Option<Engine> {
    let mpirun = mpirun.to_owned();
    let major = |text: &str| text.trim().split('.').next()?.trim().parse::<u32>().ok();
    if let Some(rest) = version.split("(Open MPI)").nth(1) {
        return Some(Engine::OpenMpi { mpirun, major: major(rest.lines().next()?)? });
    }
    if version.contains("HYDRA") {
        let line = version.lines().find_map(|l| l.trim().strip_prefix("Version:"))?;
        return Some(Engine::Mpich { mpirun, major: major(line)? });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_tells_its_mpi() {
        let of = |names: &[&str]| mpi_of(&names.iter().map(|&n| n.to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&["libm.so.6", "libmpi.so.40", "libc.so.6"]), Some(Choice::Openmpi));
        assert_eq!(of(&["libmpi_mpifh.so.40", "libmpi.so.40"]), Some(Choice::Openmpi));
        assert_eq!(of(&["libmpichfort.so.12", "libmpich.so.12"]), Some(Choice::Mpich));
        assert_eq!(of(&["libmpi.so.12"]), Some(Choice::Mpich));
        assert_eq!(of(&["libc.so.6", "libmpdec.so.3"]), None);
    }

    #[test]
    fn a_launcher_of_another_mpi_is_noticed() {
        let mpich = Engine::Mpich { mpirun: PathBuf::from("mpirun"), major: 4 };
        let slurm = Engine::Slurm { srun: PathBuf::from("srun") };
        let needed = ["libmpi.so.40".to_owned()];
        assert_eq!(mpich.is_foreign_to(&needed), Some("Open MPI"));
        assert_eq!(Engine::Local.is_foreign_to(&needed), Some("Open MPI"));
        assert_eq!(mpich.is_foreign_to(&["libmpi.so.12".to_owned()]), None);
        assert_eq!(
            (slurm.is_foreign_to(&needed), Engine::Local.is_foreign_to(&["libc.so.6".to_owned()])),
            (None, None)
        );
    }

    #[test]
    fn versions() {
        let mpirun = PathBuf::from("mpirun");
        let open = "mpirun (Open MPI) 5.0.8\n\nReport bugs to https://www.open-mpi.org/community/help/\n";
        assert_eq!(engine_of(&mpirun, open), Some(Engine::OpenMpi { mpirun: mpirun.clone(), major: 5 }));
        let hydra = "HYDRA build details:\n    Version:                                 4.0.2\n";
        assert_eq!(engine_of(&mpirun, hydra), Some(Engine::Mpich { mpirun: mpirun.clone(), major: 4 }));
        assert_eq!(engine_of(&mpirun, "something else"), None);
    }
}
