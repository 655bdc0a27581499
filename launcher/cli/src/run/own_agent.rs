//! Jobs that need no agent of an MPI: those on this host of programs without an MPI.

use hostbuf::Result;

use super::selection::{self, EngineChoice};
use super::{Host, RunArguments};
use crate::agent_program;
use crate::engines::{self, AgentKind, AgentProgram, LaunchCommand};

/// Returns the agent for the jobs of `command`, with that command. If none is installed, as after
/// `cargo install` of the command alone, a job is started without an MPI instead, as by
/// `--launcher local`, if its programs are linked to none and the user has named neither an engine
/// nor hosts. A line states this. `needed` are the libraries of the programs.
///
/// # Errors
/// As [`agent_program::find`].
pub(super) fn find(
    command: LaunchCommand,
    arguments: &RunArguments,
    hosts: &[Host],
    needed: &[String],
) -> Result<(LaunchCommand, AgentProgram)> {
    let error = match agent_program::find(&command, arguments.agent.as_deref()) {
        Ok(agent) => return Ok((command, agent)),
        Err(error) => error,
    };
    let is_free = arguments.launcher == EngineChoice::Auto
        && arguments.mpirun.is_none()
        && arguments.agent.is_none()
        && arguments.launcher_args.is_empty()
        && hosts.is_empty()
        && !selection::needs_mpi(needed)
        && !engines::is_in_allocation();
    let mut own = engines::ALL.iter().filter(|engine| engine.agent() == AgentKind::Command);
    let Some(own) = own.find_map(|engine| engine.without_mpirun()?.ok()).filter(|_| is_free) else {
        return Err(error);
    };
    let agent = agent_program::find(&own, None)?;
    if !arguments.quiet {
        hostbuf_agent::complain!(
            "hostbuf run: no agent for {} is installed, so the ranks start without an MPI, as with --launcher {}",
            command.release.title(),
            own.engine.option()
        );
    }
    Ok((own, agent))
}
