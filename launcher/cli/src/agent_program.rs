//! The program that runs as the agent of a host.

use std::path::{Path, PathBuf};

use hostbuf::{Error, Result};

use crate::engines::{self, AgentKind, AgentProgram, LaunchCommand};
use crate::installation;

/// The beginning of the name of an agent that is built for one MPI. The flavour follows.
const PREFIX: &str = "hostbuf-agent-";
/// The name of an agent that is installed for the only MPI of a host.
const ANY: &str = "hostbuf-agent";

/// Returns the agent for the jobs of `command`. `given` is the agent that the user names.
///
/// # Errors
/// [`Error::Unsupported`] with the folders that were searched.
pub(crate) fn find(command: &LaunchCommand, given: Option<&Path>) -> Result<AgentProgram> {
    let engine = command.engine;
    if let Some(path) = given {
        return Ok(program(absolute(path)?));
    }
    if engine.agent() == AgentKind::Command {
        let path = absolute(&std::env::current_exe().unwrap_or_default())?;
        return Ok(AgentProgram { path, managed_start: None });
    }
    let flavours = flavours(command);
    if let Some(found) = installed(&flavours) {
        return Ok(program(absolute(&found)?));
    }
    let names = flavours.iter().map(|flavour| format!("{PREFIX}{flavour}")).collect::<Vec<_>>();
    let names = if names.is_empty() { ANY.to_owned() } else { names.join(" or ") };
    let flavour = if let [only] = &flavours[..] { only } else { "" };
    Err(Error::Unsupported {
        what: format!("an agent for {}", command.release.title()),
        why: format!(
            "{names} is neither in {} nor in ../libexec/hostbuf: `{}` in hostbuf's sources builds it; --agent names another, \
             and --launcher local needs none",
            folders()[0].display(),
            installation::mend(flavour)
        ),
    })
}

/// Returns the flavours of the agents that serve the jobs of `command`.
pub(crate) fn flavours(command: &LaunchCommand) -> Vec<String> {
    match command.engine.agent() {
        AgentKind::Command => Vec::new(),
        AgentKind::OwnMpi => command.release.flavour.iter().cloned().collect(),
        AgentKind::AnyMpi => engines::flavours().map(str::to_owned).collect(),
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
fn program(path: PathBuf) -> AgentProgram {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut mpis = engines::ALL.iter().filter(|engine| !engine.flavours().is_empty());
    let first = mpis.clone().next();
    let mpi = mpis.find(|engine| name.contains(engine.option())).or(first);
    AgentProgram { path, managed_start: mpi.and_then(|engine| engine.managed_start()) }
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
                program(path.into()).managed_start.map(|start| start.protocol),
                Some(protocol),
                "{path}"
            );
        }
    }
}
