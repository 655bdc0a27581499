//! The interface of an engine.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hostbuf::Result;
use hostbuf_os::process;
use nix::sys::resource::Resource;

use super::abi::Abi;
use super::diagnosis::{self, Diagnosis, EndedProcess};
use super::place::Place;
use super::plan::{LaunchPlan, LaunchRequest, ManagedStart};
use super::release::Release;
use crate::finding::Finding;

/// A function that runs a program with arguments and returns its output, or the reason why it has
/// none.
pub(crate) type Query<'a> = &'a dyn Fn(&Path, &[&str]) -> std::result::Result<String, String>;

/// The kind of agent that an engine starts on each host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AgentKind {
    /// The command `hostbuf` itself: the job has one host.
    Command,
    /// The agent that is built for the MPI of the engine.
    OwnMpi,
    /// An agent of any MPI: the engine starts the programs of all of them.
    AnyMpi,
}

/// A launch command that was found on this host.
#[derive(Clone)]
pub(crate) struct LaunchCommand {
    pub(crate) engine: &'static dyn Engine,
    pub(crate) path: PathBuf,
    pub(crate) release: Release,
}

/// An option of an engine's command line that users give to `hostbuf run` by mistake.
pub(crate) struct Replacement {
    /// The names of the option, without leading hyphens.
    pub(crate) names: &'static [&'static str],
    /// The option of `hostbuf run` with the same meaning.
    pub(crate) instead: &'static str,
}

/// The replacement of options that name hosts.
pub(crate) const HOST: &str = "--host h0:2,h1:2";
/// The replacement of options that name a host file.
pub(crate) const HOSTFILE: &str = "--hostfile FILE";
/// The replacement of an option with a value that binds ranks to CPUs, or leaves them unbound.
pub(crate) const BIND_TO: &str = "--launcher-arg --bind-to --launcher-arg VALUE, the engine's option, since hostbuf binds no \
     rank without --bind";
/// The replacement of options that give the number of ranks of each host.
pub(crate) const RANKS_OF_HOSTS: &str = "--host h0:2,h1:2, which names the ranks of each host";

/// A program that starts the processes of a job on its hosts.
pub(crate) trait Engine: Send + Sync {
    /// Returns the name for messages.
    fn name(&self) -> &'static str;

    /// Returns the value of `--launcher` that selects the engine.
    fn option(&self) -> &'static str;

    /// Returns the help text of that value.
    fn help(&self) -> &'static str;

    // Finding the engine.

    /// Returns the names of the launch command in PATH, besides `mpirun` and `mpiexec`.
    fn commands(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the release of a launch command from the output of its option `--version`, or `None`
    /// if the command belongs to another engine.
    fn recognize(&self, version: &str) -> Option<Release> {
        let _ = version;
        None
    }

    /// Returns the release of the launch command with the file name `name`, if the name is enough
    /// to know it.
    fn recognize_file(&self, name: &str) -> Option<Release> {
        let _ = name;
        None
    }

    /// Returns the launch command of an engine that needs no mpirun, or the reason why it cannot be
    /// used here. The result is `None` for an MPI, whose mpirun has to be found.
    fn without_mpirun(&self) -> Option<std::result::Result<LaunchCommand, String>> {
        None
    }

    /// Returns whether a program that needs the shared library `name` is a program of this engine's
    /// MPI.
    fn provides_library(&self, name: &str) -> bool {
        let _ = name;
        false
    }

    /// Returns the Debian package of the engine, for a remedy.
    fn package(&self) -> Option<&'static str> {
        None
    }

    // Its agents.

    /// Returns the kind of agent that the engine starts.
    fn agent(&self) -> AgentKind {
        AgentKind::OwnMpi
    }

    /// Returns the binary interfaces that the engine's MPI has in common with others, the preferred
    /// one first. A release need not have all of them.
    fn abis(&self) -> &'static [Abi] {
        &[]
    }

    /// Returns the flavours for which agents are built.
    fn flavours(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the way in which a resource manager's launch command starts programs of this MPI.
    fn managed_start(&self) -> Option<ManagedStart> {
        None
    }

    // Its command lines.

    /// Returns the options of the engine that users give to `hostbuf run` by mistake.
    fn replacements(&self) -> &'static [Replacement] {
        &[]
    }

    /// Returns the options that place ranks, each with the number of its values. They are meant for
    /// the program, not for the agents.
    fn placing_options(&self) -> &'static [(&'static str, usize)] {
        &[]
    }

    /// Returns the options with which the engine leaves ranks on all CPUs. They are empty for an
    /// engine that binds no rank unless it is asked.
    fn no_binding(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the option, as the user writes it, with which the engine binds no rank. It is `None`
    /// for an engine that has no such option.
    fn option_to_bind_none(&self) -> Option<String> {
        let words = self.no_binding();
        (!words.is_empty()).then(|| words.join(" "))
    }

    /// Returns whether the user's options bind ranks to CPUs.
    fn is_binding(&self, options: &[Cow<'_, str>]) -> bool {
        let _ = options;
        false
    }

    /// Makes the command lines of a job.
    ///
    /// # Errors
    /// [`Error::Invalid`](hostbuf::Error::Invalid) if the engine cannot start the requested ranks.
    fn plan(&self, request: &LaunchRequest<'_>) -> Result<LaunchPlan>;

    /// Returns the number of hosts in the allocation around this process, if the engine manages
    /// one.
    fn allocated_hosts(&self) -> Option<String> {
        None
    }

    /// Returns the variables with which every launch command starts in the allocation around this
    /// process, whichever engine it belongs to.
    fn allocation_variables(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// Returns the variable that is set inside an allocation of the engine, for the manual.
    fn allocation_variable(&self) -> Option<&'static str> {
        None
    }

    /// Returns the setting of the engine that raises a limit of its ranks.
    fn limit_remedy(&self, limit: Resource) -> Option<&'static str> {
        let _ = limit;
        None
    }

    /// Returns why the engine cannot start ranks on other hosts than this one. `missing` states
    /// what was not found if the user has not chosen the engine.
    fn limited_to_one_host(&self, missing: Option<&str>) -> Option<String> {
        let _ = missing;
        None
    }

    // Its ranks, seen from inside.

    /// Returns the place of this process in its job from the engine's environment variables.
    fn place(&self, variable: &dyn Fn(&str) -> Option<String>) -> Option<Place>;

    /// Returns a name that all ranks of this job on this host have in common, and no others.
    fn job_key(&self) -> Option<String> {
        None
    }

    /// Returns what is missing if [`Engine::job_key`] returns `None`: a clause for a message.
    fn missing_job_key(&self) -> Option<&'static str> {
        None
    }

    /// Returns the names of the engine's processes above its ranks on a host, besides `mpirun` and
    /// `mpiexec`.
    fn daemons(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the variable with the number of a rank, for the manual.
    fn rank_variable(&self) -> Option<&'static str> {
        None
    }

    // Its failures.

    /// Returns whether the launcher itself is the parent of the ranks, so that it ends them and
    /// reports their signals.
    fn spawns_ranks(&self) -> bool {
        false
    }

    /// Returns the time in which the engine ends a job of which a rank has failed. Some engines
    /// take a second, and some crash if they get SIGTERM meanwhile.
    fn abort_time(&self) -> Duration {
        Duration::from_secs(3)
    }

    /// Returns whether a line on standard error means that a host cannot be reached, of an engine
    /// that waits for that host for ever.
    fn reports_unreachable_host(&self, line: &str) -> bool {
        let _ = line;
        false
    }

    /// Describes why the engine could not start the agents, if `lines` tell: its lines on standard
    /// error.
    fn diagnose(&self, lines: &[&str]) -> Option<Diagnosis> {
        diagnosis::unreachable_host(lines)
    }

    /// Returns the process because of which the engine has ended its job, if `lines` tell: the
    /// engine's lines on standard error, then those on standard output.
    fn ended_process(&self, lines: &[&str]) -> Option<EndedProcess> {
        let _ = lines;
        None
    }

    /// Returns whether a line on standard error means that the engine crashed while it started the
    /// agents, so that a second try may succeed.
    fn reports_crash(&self, line: &str) -> bool {
        let _ = line;
        false
    }

    /// Describes the possible shortage of slots if the user names no hosts, and the remedy.
    fn shortage(&self, ranks: usize, release: &Release) -> (String, String) {
        let unbound = self.option_beyond_cores(release);
        let unbound = unbound.map_or(String::new(), |option| format!(" --launcher-arg {option}"));
        (
            format!(
                "-n {ranks} may exceed the slots that the engine counts (the cores of this host, or the allocation)"
            ),
            format!("name the slots (--host {}:{ranks}{unbound})", process::host_name()),
        )
    }

    /// Returns the option that starts more ranks than there are slots, in words behind the first
    /// `--launcher-arg`.
    fn oversubscribe(&self, release: &Release) -> &'static str {
        let _ = release;
        "--oversubscribe"
    }

    /// Returns the option that binds no rank, in words behind the first `--launcher-arg`, if the
    /// engine otherwise refuses more ranks than a host has cores.
    fn option_beyond_cores(&self, release: &Release) -> Option<&'static str> {
        let _ = release;
        None
    }

    /// Checks this host for `hostbuf doctor`, beyond the launch command and its agent.
    fn check(&self, query: Query<'_>) -> Vec<Finding> {
        let _ = query;
        Vec::new()
    }
}

impl PartialEq for dyn Engine {
    fn eq(&self, other: &dyn Engine) -> bool {
        self.option() == other.option()
    }
}

impl fmt::Debug for dyn Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.option())
    }
}
