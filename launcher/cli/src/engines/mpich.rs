//! MPICH and its relatives: mpiexec of the process manager Hydra.
//!
//! Names: MPICH, Hydra, MVAPICH, PMI_, MPI_LOCALRANKID, MPI_LOCALNRANKS.

use hostbuf::Result;
use hostbuf_os::process;

use super::diagnosis::{self, EndedProcess};
use super::engine::{Engine, HOST, HOSTFILE, RANKS_OF_HOSTS, Replacement};
use super::place::Place;
use super::plan::{Invocation, LaunchPlan, LaunchRequest, ManagedStart};
use super::release::Release;
use crate::hosts;

/// The engine MPICH.
pub(crate) struct Mpich;

/// The variable with the number of a rank.
const RANK: &str = "PMI_RANK";

/// Hydra's process above the ranks of a host.
const PROXY: &str = "hydra_pmi_proxy";

impl Engine for Mpich {
    fn name(&self) -> &'static str {
        "MPICH"
    }

    fn option(&self) -> &'static str {
        "mpich"
    }

    fn help(&self) -> &'static str {
        "Use mpiexec of MPICH (Hydra)"
    }

    fn commands(&self) -> &'static [&'static str] {
        &["mpirun.mpich", "mpiexec.mpich", "mpiexec.hydra"]
    }

    /// Recognises Hydra by its version text. MVAPICH has Hydra too, but no agent is built for it.
    fn recognize(&self, version: &str) -> Option<Release> {
        if !version.contains("HYDRA") {
            return None;
        }
        let number = version.split_once("Version:").and_then(|(_, rest)| rest.split_whitespace().next());
        let number = number.unwrap_or_default().to_owned();
        Some(if version.to_ascii_lowercase().contains("mvapich") {
            Release::new("MVAPICH", number, None)
        } else {
            Release::new(self.name(), number, Some(self.option()))
        })
    }

    /// Returns true for the libraries of version 12: MPICH, and every MPI with its binary
    /// interface.
    fn provides_library(&self, name: &str) -> bool {
        name.starts_with("libmpi")
            && name.split_once(".so.").is_some_and(|(_, v)| v.split('.').next() == Some("12"))
    }

    fn package(&self) -> Option<&'static str> {
        Some("mpich")
    }

    fn flavours(&self) -> &'static [&'static str] {
        &["mpich4", "mpich5"]
    }

    fn managed_start(&self) -> Option<ManagedStart> {
        Some(ManagedStart { protocol: "pmi2", variables: &[] })
    }

    fn replacements(&self) -> &'static [Replacement] {
        &[
            Replacement { names: &["hosts"], instead: HOST },
            Replacement { names: &["f"], instead: HOSTFILE },
            Replacement { names: &["ppn", "perhost"], instead: RANKS_OF_HOSTS },
            Replacement {
                names: &["env", "genv"],
                instead: "--launcher-arg -genv --launcher-arg NAME --launcher-arg VALUE",
            },
            Replacement { names: &["envall", "genvall"], instead: "--launcher-arg -genvall" },
            Replacement {
                names: &["envlist", "genvlist"],
                instead: "--launcher-arg -genvlist --launcher-arg NAMES",
            },
        ]
    }

    /// Returns the option against a binding by the user or by the site's settings.
    fn option_to_bind_none(&self) -> Option<String> {
        Some("-bind-to none".into())
    }

    fn placing_options(&self) -> &'static [(&'static str, usize)] {
        &[
            ("-ppn", 1),
            ("--ppn", 1),
            ("-perhost", 1),
            ("-map-by", 1),
            ("--map-by", 1),
            ("-bind-to", 1),
            ("--bind-to", 1),
            ("-binding", 1),
            ("--binding", 1),
            ("-n", 1),
            ("-np", 1),
            ("-l", 0),
        ]
    }

    fn plan(&self, request: &LaunchRequest<'_>) -> Result<LaunchPlan> {
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
        let agents =
            agents.words(["-bind-to", "none"]).words([&request.agent.path]).words(request.agent_arguments);
        let mut ranks = Invocation::new(mpiexec).words(request.options);
        for (name, value) in request.inherited.into_iter().flatten() {
            ranks = ranks.words(["-genv", name, value]);
        }
        if !request.hosts.is_empty() {
            ranks = ranks.words(["-hosts", &hosts::list(request.hosts)]);
        }
        for (i, context) in request.contexts.iter().enumerate() {
            ranks = if i > 0 { ranks.words([":"]) } else { ranks };
            if let Some(n) = context.ranks.or(request.ranks) {
                ranks = ranks.words(["-n", &n.to_string()]);
            }
            ranks = ranks.words(request.rank(context));
        }
        Ok(LaunchPlan { agents, agent_count: request.agent_count(), ranks: vec![ranks] })
    }

    fn place(&self, variable: &dyn Fn(&str) -> Option<String>) -> Option<Place> {
        const VARIABLES: [&str; 4] = [RANK, "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"];
        Place::from_variables(variable, VARIABLES)
    }

    fn rank_variable(&self) -> Option<&'static str> {
        Some(RANK)
    }

    /// Returns the proxy's process as the job's key. Hydra gives its ranks no name for the job, but
    /// all ranks of a host have one proxy as their ancestor.
    fn job_key(&self) -> Option<String> {
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

    fn missing_job_key(&self) -> Option<&'static str> {
        Some("no Hydra proxy is an ancestor of this process")
    }

    fn daemons(&self) -> &'static [&'static str] {
        &[PROXY]
    }

    fn reports_unreachable_host(&self, line: &str) -> bool {
        diagnosis::is_of_ssh(line)
    }

    /// Recognises the paragraph on standard output about a process that a signal has ended. The
    /// "exit code" is the status that the kernel gives to its parent, so its low bits are the
    /// signal. The first paragraph has the cause.
    fn ended_process(&self, lines: &[&str]) -> Option<EndedProcess> {
        let mut lines = lines.iter().map(|line| line.trim_start_matches('=').trim_start());
        let host = lines.find_map(|line| {
            let (pid, host) = line.strip_prefix("PID ")?.split_once(" RUNNING AT ")?;
            pid.parse::<u32>().is_ok().then_some(host)
        })?;
        let status: i32 = lines.next()?.strip_prefix("EXIT CODE: ")?.parse().ok()?;
        let signal = status & 0x7f;
        (signal > 0).then(|| EndedProcess { host: host.to_owned(), signal })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_mpich_are_recognized() {
        let hydra = "HYDRA build details:\n    Version:                                 4.0.2\n    CC: gcc\n";
        assert_eq!(Mpich.recognize(hydra), Some(Release::new("MPICH", "4.0.2".into(), Some("mpich"))));
        let relative = format!("{hydra}    Configure options: '--prefix=/opt/mvapich2'\n");
        let release = Mpich.recognize(&relative).unwrap();
        assert_eq!((release.name, release.flavour), ("MVAPICH", None));
        assert_eq!(Mpich.recognize("mpirun (Open MPI) 4.1.4\n"), None);
    }

    #[test]
    fn the_process_that_a_signal_has_ended_is_recognized() {
        let paragraph = |process: &'static str, code: &'static str| {
            [
                "",
                "=====================================",
                "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
                process,
                code,
                "=   CLEANING UP REMAINING PROCESSES",
                "=====================================",
            ]
        };
        let before =
            ["[mpiexec@head] process manager error", r#"{"hostbuf":"ready","host":"h0","agents":2}"#];
        let killed = paragraph("=   PID 52 RUNNING AT h1", "=   EXIT CODE: 9");
        let later = paragraph("=   PID 53 RUNNING AT h2", "=   EXIT CODE: 15");
        let ended = Mpich.ended_process(&[&before[..], &killed, &later].concat());
        assert_eq!(ended, Some(EndedProcess { host: "h1".into(), signal: 9 }));
        // With a core dump.
        let crashed = paragraph("=   PID 52 RUNNING AT h1", "=   EXIT CODE: 139");
        assert_eq!(Mpich.ended_process(&crashed), Some(EndedProcess { host: "h1".into(), signal: 11 }));
        let failed = paragraph("=   PID 52 RUNNING AT h1", "=   EXIT CODE: 256");
        for unknown in [&before[..], &failed, &killed[..4], &[]] {
            assert_eq!(Mpich.ended_process(unknown), None, "{unknown:?}");
        }
    }
}
