//! Hydra, the process manager of several MPIs.
//!
//! Names: Hydra, PMI_, MPI_LOCALRANKID, MPI_LOCALNRANKS.

use hostbuf_os::process;

use super::diagnosis::EndedProcess;
use super::engine::{HOST, HOSTFILE, RANKS_OF_HOSTS, Replacement};
use super::place::Place;
use super::plan::{Invocation, LaunchPlan, LaunchRequest};
use crate::hosts::{self, Host};

/// The variable with the number of a rank.
pub(super) const RANK: &str = "PMI_RANK";

/// Hydra's process above the ranks of a host.
pub(super) const PROXY: &str = "hydra_pmi_proxy";

/// A clause about the reason why [`job_key`] returns `None`.
pub(super) const MISSING_JOB_KEY: &str = "no Hydra proxy is an ancestor of this process";

/// Hydra's options that users give to `hostbuf run` by mistake.
pub(super) const REPLACEMENTS: &[Replacement] = &[
    Replacement { names: &["hosts"], instead: HOST },
    Replacement { names: &["f"], instead: HOSTFILE },
    Replacement { names: &["ppn", "perhost"], instead: RANKS_OF_HOSTS },
    Replacement {
        names: &["env", "genv"],
        instead: "--launcher-arg -genv --launcher-arg NAME --launcher-arg VALUE",
    },
    Replacement { names: &["envall", "genvall"], instead: "--launcher-arg -genvall" },
    Replacement { names: &["envlist", "genvlist"], instead: "--launcher-arg -genvlist --launcher-arg NAMES" },
];

/// Makes the command lines of a job. `agent_options` are further options for the job of the agents.
/// `on_hosts` adds the option that names the hosts of the ranks with their slots.
pub(super) fn plan(
    request: &LaunchRequest<'_>,
    agent_options: &[&str],
    on_hosts: impl FnOnce(Invocation, &[Host]) -> Invocation,
) -> LaunchPlan {
    let mpiexec = request.command;
    let agents = Invocation::new(mpiexec).words(request.agent_options);
    let agents = match (request.agent_count(), request.allocated_hosts) {
        (Some(n), _) => {
            let names = hosts::names(request.agent_hosts);
            agents.words(["-hosts", &names, "-ppn", "1", "-n", &n.to_string()])
        }
        (None, Some(hosts)) => agents.words(["-ppn", "1", "-n", hosts]),
        (None, None) => agents.words(["-n", "1"]),
    };
    let agents = agents.words(agent_options).words(request.agent.words()).words(request.agent_arguments);
    let mut ranks = Invocation::new(mpiexec).words(request.options);
    for (name, value) in request.inherited.into_iter().flatten() {
        ranks = ranks.words(["-genv", name, value]);
    }
    if !request.hosts.is_empty() {
        ranks = on_hosts(ranks, request.hosts);
    }
    for (i, context) in request.contexts.iter().enumerate() {
        ranks = if i > 0 { ranks.words([":"]) } else { ranks };
        if let Some(n) = context.ranks.or(request.ranks) {
            ranks = ranks.words(["-n", &n.to_string()]);
        }
        ranks = ranks.words(request.rank(context));
    }
    LaunchPlan { agents, agent_count: request.agent_count(), ranks: vec![ranks] }
}

/// Returns the place of this process in its job.
pub(super) fn place(variable: &dyn Fn(&str) -> Option<String>) -> Option<Place> {
    Place::from_variables(variable, [RANK, "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"])
}

/// Returns the proxy's process as the job's key. Hydra gives its ranks no name for the job, but all
/// ranks of a host have one proxy as their ancestor.
pub(super) fn job_key() -> Option<String> {
    std::env::var_os(RANK)?;
    let mut pid = nix::unistd::getppid().as_raw();
    while pid > 1 {
        if process::name(pid).starts_with(PROXY) {
            return Some(format!("hydra/{pid}.{}", process::start_time(pid)?));
        }
        pid = process::parent(pid)?;
    }
    None
}

/// Recognises the paragraph on standard output about a process that a signal has ended. `signal`
/// reads the line behind the one with the host. The first paragraph has the cause.
pub(super) fn ended_process(lines: &[&str], signal: impl Fn(&str) -> Option<i32>) -> Option<EndedProcess> {
    let mut lines = lines.iter().map(|line| line.trim_start_matches('=').trim_start());
    let host = lines.find_map(|line| {
        let (process, host) = line.split_once(" RUNNING AT ")?;
        let (_, pid) = process.rsplit_once("PID ")?;
        pid.parse::<u32>().is_ok().then_some(host)
    })?;
    let signal = signal(lines.next()?)?;
    Some(EndedProcess { host: host.to_owned(), signal })
}
