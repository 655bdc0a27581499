//! The request from which an engine makes the command lines of a job, and these command lines.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::hosts::Host;

/// One program of a job with its number of ranks. MPI calls it an application context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AppContext {
    pub(crate) ranks: Option<usize>,
    pub(crate) command: Vec<OsString>,
}

/// The way in which a resource manager's own launch command starts the programs of an MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ManagedStart {
    /// The protocol by which the processes find each other, such as `pmix`.
    pub(crate) protocol: &'static str,
    /// Variables that the agents get unless the user has set them.
    pub(crate) variables: &'static [(&'static str, &'static str)],
}

/// The folders that the dynamic linker searches before those of the system.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// The command that starts a program with a variable, on every host.
const ENV: &str = "/usr/bin/env";

/// The program that runs as the agent of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentProgram {
    pub(crate) path: PathBuf,
    /// The way in which a resource manager starts the agent.
    pub(crate) managed_start: Option<ManagedStart>,
    /// The folder with the MPI's libraries, if the dynamic linker has to be told.
    pub(crate) libraries: Option<PathBuf>,
}

impl AgentProgram {
    /// Returns the words that start the agent. It may be built on another machine, or for several
    /// MPIs, so it does not contain the folder of the MPI's libraries.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let Some(folder) = &self.libraries else { return vec![self.path.clone().into()] };
        let mut setting = OsString::from(format!("{LIBRARY_PATH}="));
        setting.push(folder);
        if let Some(others) = std::env::var_os(LIBRARY_PATH).filter(|others| !others.is_empty()) {
            setting.push(":");
            setting.push(others);
        }
        vec![ENV.into(), setting, self.path.clone().into()]
    }
}

/// The request from which an engine makes the command lines of a job.
pub(crate) struct LaunchRequest<'a> {
    /// The path of the launch command.
    pub(crate) command: &'a Path,
    pub(crate) agent: &'a AgentProgram,
    /// The arguments of the agents.
    pub(crate) agent_arguments: &'a [String],
    /// The hosts with the slots that the user names; empty if the user names none.
    pub(crate) hosts: &'a [Host],
    /// The hosts that get an agent, with one slot each.
    pub(crate) agent_hosts: &'a [Host],
    pub(crate) contexts: &'a [AppContext],
    /// The total number of ranks, or of slots if the user gives no number of ranks.
    pub(crate) ranks: Option<usize>,
    /// The user's options for the engine.
    pub(crate) options: &'a [OsString],
    /// The user's options for the engine without those that place ranks.
    pub(crate) agent_options: &'a [OsString],
    /// Variables that the engine hands to all processes of the program's job, also to those that
    /// start later. It is `None` if the user's options leave no room for them.
    pub(crate) inherited: Option<&'a [(String, String)]>,
    /// The number of hosts in the allocation around this process.
    pub(crate) allocated_hosts: Option<&'a str>,
    /// The words in front of each rank's program: `hostbuf exec` with its options.
    pub(crate) prefix: &'a [OsString],
}

impl LaunchRequest<'_> {
    /// Returns the words that start a rank of `context`.
    pub(crate) fn rank(&self, context: &AppContext) -> Vec<OsString> {
        self.prefix.iter().chain(&context.command).cloned().collect()
    }

    /// Returns the number of hosts that get an agent, if the user names hosts.
    pub(crate) fn agent_count(&self) -> Option<usize> {
        Some(self.agent_hosts.len()).filter(|&count| count > 0)
    }
}

/// A command line with additions to its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Invocation {
    pub(crate) words: Vec<OsString>,
    pub(crate) variables: Vec<(String, String)>,
    /// The text of a file that the command reads from a descriptor, and the index of the word that
    /// becomes its path.
    pub(crate) script: Option<(String, usize)>,
}

impl Invocation {
    pub(crate) fn new(program: &Path) -> Invocation {
        Invocation { words: vec![program.into()], variables: Vec::new(), script: None }
    }

    /// Appends words.
    pub(crate) fn words<S: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = S>) -> Invocation {
        self.words.extend(words.into_iter().map(|w| w.as_ref().to_owned()));
        self
    }
}

/// The command lines of both jobs: the agents, one on each host, and the program's ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LaunchPlan {
    pub(crate) agents: Invocation,
    /// The number of agents, where it is known.
    pub(crate) agent_count: Option<usize>,
    /// One command line for an engine, or one for each rank that the launcher starts itself.
    pub(crate) ranks: Vec<Invocation>,
}
