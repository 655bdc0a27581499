//! The program that runs as the agent of a host.

use std::path::{Path, PathBuf};

use hostbuf::{Error, Result};

use crate::engines::{self, AgentKind, AgentProgram, LaunchCommand, abi};
use crate::installation;
use crate::mpi_prefix::MpiPrefix;

/// The beginning of the name of an agent for one MPI or one binary interface. The flavour follows.
const PREFIX: &str = "hostbuf-agent-";
/// The name of an agent that is installed for the only MPI of a host.
const ANY: &str = "hostbuf-agent";

/// Returns the agent for the jobs of `command`. `given` is the agent that the user names.
///
/// # Errors
/// [`Error::Unsupported`] with the folders that were searched.
pub(crate) fn find(command: &LaunchCommand, given: Option<&Path>) -> Result<AgentProgram> {
    let engine = command.engine;
    let libraries = || MpiLibraries::of(command).filter(|libraries| !libraries.are_of_system);
    let program = |path: &Path| {
        let folder = libraries().map(|found| found.folder);
        folder.as_deref().map_or(Ok(()), expect_one_entry)?;
        Ok(program(absolute(path)?, folder))
    };
    if let Some(path) = given {
        return program(path);
    }
    if engine.agent() == AgentKind::Command {
        let path = absolute(&std::env::current_exe().unwrap_or_default())?;
        return Ok(AgentProgram { path, managed_start: None, libraries: None });
    }
    let flavours = flavours(command);
    if let Some(found) = installed(&flavours) {
        return program(&found);
    }
    if flavours.is_empty() {
        return Err(Error::Unsupported {
            what: format!("an agent for {}", command.release.title()),
            why: format!(
                "there is no library of this MPI in lib, lib64 or lib/release beside the folder of {}: name the mpirun of its \
                 installation with --mpirun, or an agent with --agent",
                command.path.display()
            ),
        });
    }
    let names = names(&flavours);
    let package = agents_package(command).map(|package| {
        format!("Install the package {package}, which has the agents for Debian's MPIs and for the ABIs of MPI. Or: ")
    });
    Err(Error::Unsupported {
        what: format!("an agent for {}", command.release.title()),
        why: format!(
            "neither {} nor ../libexec/hostbuf beside it contains {names}. {}Run `{}` in hostbuf's sources to build it, or name \
             another agent with --agent. `hostbuf exec`, started by this mpirun, and --launcher local on one host need none",
            folders()[0].display(),
            package.unwrap_or_default(),
            installation::mend(&build_argument(command))
        ),
    })
}

/// Checks that the dynamic linker takes `folder` as one entry of `LD_LIBRARY_PATH`.
fn expect_one_entry(folder: &Path) -> Result<()> {
    match folder.to_string_lossy().contains([':', ';', '$']) {
        false => Ok(()),
        true => Err(Error::Unsupported {
            what: format!("an MPI in {}", folder.display()),
            why: "LD_LIBRARY_PATH cannot name a folder with : or ; or $ in its path: install this MPI at a path without them"
                .into(),
        }),
    }
}

/// Returns the flavours of the agents that serve the jobs of `command`: the one that is built for
/// its release, and those for the binary interfaces that its MPI has. The latter come first outside
/// of the system's folders, since the system's MPI of this release may have other libraries.
pub(crate) fn flavours(command: &LaunchCommand) -> Vec<String> {
    let engine = command.engine;
    match engine.agent() {
        AgentKind::Command => Vec::new(),
        AgentKind::OwnMpi => {
            let libraries = MpiLibraries::of(command);
            let has = |library| libraries.as_ref().is_some_and(|found| found.folder.join(library).exists());
            let mut flavours: Vec<String> = own_flavour(command).map(str::to_owned).into_iter().collect();
            let at =
                if libraries.as_ref().is_none_or(|found| found.are_of_system) { flavours.len() } else { 0 };
            let abis = engine.abis().iter().filter(|abi| has(abi.library)).map(|abi| abi.flavour.to_owned());
            flavours.splice(at..at, abis);
            flavours
        }
        AgentKind::AnyMpi => engines::flavours().chain([abi::MANAGED.flavour]).map(str::to_owned).collect(),
    }
}

/// Returns the names of the agents of `flavours`, for a message.
pub(crate) fn names(flavours: &[String]) -> String {
    let names = flavours.iter().map(|flavour| format!("{PREFIX}{flavour}")).collect::<Vec<_>>();
    if names.is_empty() { ANY.to_owned() } else { names.join(" or ") }
}

/// Returns the flavour of the agent that is built for the release of `command` alone.
pub(crate) fn own_flavour(command: &LaunchCommand) -> Option<&str> {
    let flavour = command.release.flavour.as_deref()?;
    command.engine.flavours().contains(&flavour).then_some(flavour)
}

/// Returns the argument of the installing script with which it builds an agent for the jobs of
/// `command`, or nothing if it builds one in any case.
pub(crate) fn build_argument(command: &LaunchCommand) -> String {
    let prefix = MpiPrefix::of_command(&command.path)
        .filter(|prefix| !prefix.is_of_system() && prefix.libraries(command.engine).is_some());
    let Some(prefix) = prefix else { return own_flavour(command).unwrap_or_default().to_owned() };
    let preferred = flavours(command).into_iter().next().filter(|flavour| flavour != abi::STANDARD.flavour);
    preferred.map(|agent| format!("{agent}={prefix}")).unwrap_or_default()
}

/// Returns the package with an agent for the jobs of `command`, if this command comes from a
/// package: it has agents for the MPIs of the system and for the binary interfaces.
pub(crate) fn agents_package(command: &LaunchCommand) -> Option<&'static str> {
    let is_of_system = MpiPrefix::of_command(&command.path).is_none_or(|prefix| prefix.is_of_system());
    let has_abi = flavours(command).iter().any(|flavour| flavour == abi::STANDARD.flavour);
    installation::agents_package().filter(|_| is_of_system || has_abi)
}

/// The libraries of the MPI to which a launch command belongs.
struct MpiLibraries {
    folder: PathBuf,
    /// True if the dynamic linker searches the folder by itself.
    are_of_system: bool,
}

impl MpiLibraries {
    fn of(command: &LaunchCommand) -> Option<MpiLibraries> {
        let prefix = MpiPrefix::of_command(&command.path)?;
        let folder = prefix.libraries(command.engine)?;
        Some(MpiLibraries { folder, are_of_system: prefix.is_of_system() })
    }
}

/// Returns the first installed agent of `flavours`, or the one that is installed without a flavour.
pub(crate) fn installed(flavours: &[String]) -> Option<PathBuf> {
    let names = flavours.iter().map(|flavour| format!("{PREFIX}{flavour}")).chain([ANY.into()]);
    let mut places = names.flat_map(|name| folders().map(|folder| folder.join(&name)));
    places.find(|place| place.is_file())
}

/// Returns the folders that contain agents.
fn folders() -> [PathBuf; 2] {
    let executable = std::env::current_exe().unwrap_or_default();
    let bin = executable.parent().unwrap_or(Path::new("/"));
    [bin.to_owned(), bin.join("../libexec/hostbuf")]
}

/// Returns the agent at `path`. Its name contains its MPI; an agent without one counts as an agent
/// of the first MPI.
fn program(path: PathBuf, libraries: Option<PathBuf>) -> AgentProgram {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut mpis = engines::ALL.iter().filter(|engine| !engine.flavours().is_empty());
    let first = mpis.clone().next();
    let mpi = mpis.find(|engine| name.contains(engine.option())).or(first);
    AgentProgram { path, managed_start: mpi.and_then(|engine| engine.managed_start()), libraries }
}

fn absolute(path: &Path) -> Result<PathBuf> {
    let found = path.canonicalize();
    found.map_err(|source| Error::Os { doing: format!("looking for {}", path.display()), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_manager_starts_an_agent_with_the_protocol_of_its_mpi() {
        for (path, protocol) in
            [("/x/hostbuf-agent-mpich4", "pmi2"), ("/x/hostbuf-agent-openmpi5", "pmix"), ("/x/agent", "pmix")]
        {
            assert_eq!(
                program(path.into(), None).managed_start.map(|start| start.protocol),
                Some(protocol),
                "{path}"
            );
        }
    }
}
