//! The engine `local`: the launcher itself starts the ranks, on this host only, without an MPI.
//!
//! Names: LocalEngine.

use std::time::Duration;

use hostbuf::{Error, Result};
use hostbuf_protocol::environment::{ENV_LAUNCHED_RANK, ENV_LAUNCHED_RANKS};

use super::diagnosis::Diagnosis;
use super::engine::{AgentKind, Engine, LaunchCommand};
use super::place::Place;
use super::plan::{AppContext, Invocation, LaunchPlan, LaunchRequest};
use super::release::Release;
use crate::hosts;

/// The engine `local`.
pub(crate) struct LocalEngine;

/// The largest number of ranks. Each has a command line here and a connection to the agent.
const MAX_RANKS: usize = 1 << 16;

/// Checks that `size` ranks can be started as requested.
///
/// # Errors
/// [`Error::Invalid`].
fn check(size: usize, request: &LaunchRequest<'_>) -> Result<()> {
    let invalid = |what| Err(Error::Invalid { what });
    if let Some(option) = request.options.first() {
        let option = option.to_string_lossy();
        return invalid(format!(
            "--launcher-arg {option}: --launcher local starts the ranks itself and takes no such options. Leave out \
             --launcher-arg, or use an MPI"
        ));
    }
    let slots: usize = request.hosts.iter().map(|host| host.slots).sum();
    if !request.hosts.is_empty() && size > slots {
        let (list, name) = (hosts::list(request.hosts), &request.hosts[0].name);
        let s = if slots == 1 { "" } else { "s" };
        return invalid(format!(
            "-n {size} exceeds the {slots} slot{s} of {list}: request fewer ranks, or name more slots (--host {name}:{size})"
        ));
    }
    if size > MAX_RANKS {
        return invalid(format!(
            "-n {size}: --launcher local starts at most {MAX_RANKS} ranks. Request fewer ranks, or use an MPI"
        ));
    }
    Ok(())
}

/// The variables of a rank: its number, and the number of ranks. Unlike those for the program, no
/// process inherits them from a rank, so a job that a rank starts is not taken for this one.
const VARIABLES: [&str; 2] = [ENV_LAUNCHED_RANK, ENV_LAUNCHED_RANKS];

impl Engine for LocalEngine {
    fn name(&self) -> &'static str {
        "local"
    }

    fn option(&self) -> &'static str {
        "local"
    }

    fn help(&self) -> &'static str {
        "Start the ranks on this host without an MPI"
    }

    fn without_mpirun(&self) -> Option<std::result::Result<LaunchCommand, String>> {
        let path = std::env::current_exe().unwrap_or_default();
        let release = Release::new(self.name(), String::new(), None);
        Some(Ok(LaunchCommand { engine: &LocalEngine, path, release }))
    }

    fn agent(&self) -> AgentKind {
        AgentKind::Command
    }

    fn limited_to_one_host(&self, missing: Option<&str>) -> Option<String> {
        Some(match missing {
            Some(missing) => format!("{missing}. Install an MPI, or name its mpirun with --mpirun"),
            None => {
                "--launcher local starts ranks on this host only. Leave out --launcher or the other hosts"
                    .into()
            }
        })
    }

    fn plan(&self, request: &LaunchRequest<'_>) -> Result<LaunchPlan> {
        let counted: Vec<(usize, &AppContext)> =
            request.contexts.iter().map(|c| (c.ranks.or(request.ranks).unwrap_or(1), c)).collect();
        let size: usize = counted.iter().map(|(n, _)| n).sum();
        check(size, request)?;
        let each = counted.iter().flat_map(|&(n, context)| std::iter::repeat_n(context, n));
        let ranks = each.enumerate().map(|(number, context)| {
            let values = [number, size].map(|value| value.to_string());
            let variables = VARIABLES.map(str::to_owned).into_iter().zip(values).collect();
            Invocation { words: request.rank(context), variables, script: None }
        });
        Ok(LaunchPlan {
            agents: Invocation::new(&request.agent.path).words(["agent"]).words(request.agent_arguments),
            agent_count: Some(1),
            ranks: ranks.collect(),
        })
    }

    fn place(&self, variable: &dyn Fn(&str) -> Option<String>) -> Option<Place> {
        let [rank, size] = VARIABLES;
        // All ranks are on this host.
        Place::from_variables(variable, [rank, size, rank, size])
    }

    fn spawns_ranks(&self) -> bool {
        true
    }

    /// Returns `None`: the lines are those of the agent itself.
    fn diagnose(&self, _lines: &[&str]) -> Option<Diagnosis> {
        None
    }

    /// Returns the time that a rank needs to end by itself: no other process has to end it.
    fn abort_time(&self) -> Duration {
        Duration::from_millis(500)
    }
}
