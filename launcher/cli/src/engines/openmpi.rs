//! Open MPI: mpirun of the series 4.1 (ORTE) and 5 (PRRTE).
//!
//! Names: Open MPI, openmpi, open-mpi, OMPI, ORTE, orterun, orted, PRTE, PRRTE,
//! prterun, prted, PMIX_.

use std::borrow::Cow;

use hostbuf::Result;

use super::diagnosis::{self, Diagnosis, EndedProcess};
use super::engine::{BIND_TO, Engine, HOST, HOSTFILE, RANKS_OF_HOSTS, Replacement};
use super::place::Place;
use super::plan::{Invocation, LaunchPlan, LaunchRequest, ManagedStart};
use super::release::Release;
use crate::hosts;

/// The engine Open MPI.
pub(crate) struct OpenMpi;

/// The variable with the number of a rank.
const RANK: &str = "OMPI_COMM_WORLD_RANK";

impl OpenMpi {
    fn release(&self, version: &str) -> Release {
        Release::new(self.name(), version.to_owned(), Some(self.option()))
    }
}

impl Engine for OpenMpi {
    fn name(&self) -> &'static str {
        "Open MPI"
    }

    fn option(&self) -> &'static str {
        "openmpi"
    }

    fn help(&self) -> &'static str {
        "Use mpirun of Open MPI (4.1, 5)"
    }

    fn commands(&self) -> &'static [&'static str] {
        &["mpirun.openmpi", "mpiexec.openmpi"]
    }

    fn recognize(&self, version: &str) -> Option<Release> {
        let after = |mark: &str| version.split_once(mark)?.1.split_whitespace().next();
        Some(self.release(after("(Open MPI)").or_else(|| after("(OpenRTE)"))?))
    }

    /// Recognises orterun, to which mpirun is a link in the supported series 4.1 only. Starting
    /// mpirun to read its version takes long.
    fn recognize_file(&self, name: &str) -> Option<Release> {
        (name == "orterun").then(|| self.release("4"))
    }

    fn provides_library(&self, name: &str) -> bool {
        name.starts_with("libmpi")
            && name.split_once(".so.").is_some_and(|(_, v)| v.split('.').next() == Some("40"))
    }

    fn package(&self) -> Option<&'static str> {
        Some("openmpi-bin")
    }

    fn flavours(&self) -> &'static [&'static str] {
        &["openmpi4", "openmpi5"]
    }

    /// Selects UCX on all networks. Under srun, Open MPI's own transport (ob1) sometimes crashes
    /// when a message reaches a rank that is still in MPI_Init (4.1: 1 to 7 of 100 jobs); UCX does
    /// not.
    fn managed_start(&self) -> Option<ManagedStart> {
        Some(ManagedStart {
            protocol: "pmix",
            variables: &[("OMPI_MCA_pml_ucx_tls", "any"), ("OMPI_MCA_pml_ucx_devices", "any")],
        })
    }

    fn replacements(&self) -> &'static [Replacement] {
        &[
            Replacement { names: &["H", "host"], instead: HOST },
            Replacement { names: &["hostfile", "machinefile", "default-hostfile"], instead: HOSTFILE },
            Replacement { names: &["N", "npernode"], instead: RANKS_OF_HOSTS },
            Replacement { names: &["np"], instead: "-n" },
            Replacement { names: &["bind-to"], instead: BIND_TO },
            Replacement { names: &["x"], instead: "--launcher-arg -x --launcher-arg NAME" },
        ]
    }

    fn placing_options(&self) -> &'static [(&'static str, usize)] {
        &[
            ("-N", 1),
            ("--npernode", 1),
            ("-npernode", 1),
            ("--map-by", 1),
            ("-map-by", 1),
            ("--rank-by", 1),
            ("-rank-by", 1),
            ("--bind-to", 1),
            ("-bind-to", 1),
            ("--ppr", 1),
            ("--pernode", 0),
            ("-pernode", 0),
            ("--bynode", 0),
            ("-bynode", 0),
            ("--byslot", 0),
            ("-n", 1),
            ("-np", 1),
            ("--np", 1),
            ("-c", 1),
            ("--report-bindings", 0),
            ("--rankfile", 1),
            ("-rf", 1),
            ("--cpus-per-proc", 1),
            ("-cpus-per-proc", 1),
            ("--cpus-per-rank", 1),
            ("-cpus-per-rank", 1),
            ("--cpu-set", 1),
            ("-cpu-set", 1),
            ("--cpu-list", 1),
            ("-cpu-list", 1),
            ("-rankfile", 1),
            ("--tag-output", 0),
            ("-tag-output", 0),
            ("--output", 1),
        ]
    }

    fn no_binding(&self) -> &'static [&'static str] {
        &["--bind-to", "none"]
    }

    /// Recognises the options that bind, the parameters of the same meaning, and the modifiers
    /// `PE=` and `PE-LIST=` of `--map-by`. Beside most of them, the series 5 refuses `--bind-to
    /// none`.
    fn is_binding(&self, options: &[Cow<'_, str>]) -> bool {
        const OPTIONS: [&str; 9] = [
            "bind-to",
            "bind-to-core",
            "bind-to-socket",
            "rankfile",
            "rf",
            "cpu-set",
            "cpu-list",
            "cpus-per-proc",
            "cpus-per-rank",
        ];
        const PARAMETERS: [&str; 4] = ["binding_policy", "cpus_per_rank", "cpu_list", "cpu_set"];
        let binds = |word: &Cow<'_, str>| {
            let name = word.trim_start_matches('-').split('=').next().unwrap_or_default();
            word.starts_with('-') && OPTIONS.contains(&name)
        };
        let sets = |pair: &[Cow<'_, str>]| {
            ["mca", "prtemca", "pmixmca", "gmca"].contains(&pair[0].trim_start_matches('-'))
                && PARAMETERS.iter().any(|parameter| pair[1].ends_with(parameter))
        };
        let maps = |name: &str| name.trim_start_matches('-') == "map-by" || name.ends_with("mapping_policy");
        let has_list = |policy: &str| {
            let policy = policy.to_ascii_lowercase();
            policy.split(':').any(|part| part.starts_with("pe=") || part.starts_with("pe-list="))
        };
        options.iter().any(binds)
            || options.windows(2).any(sets)
            || options.windows(2).any(|pair| maps(&pair[0]) && has_list(&pair[1]))
            || options
                .iter()
                .filter_map(|word| word.split_once('='))
                .any(|(name, policy)| maps(name) && has_list(policy))
    }

    fn plan(&self, request: &LaunchRequest<'_>) -> Result<LaunchPlan> {
        let mpirun = request.command;
        let agents = Invocation::new(mpirun).words(request.agent_options);
        let agents = match request.agent_count() {
            Some(n) => agents.words(["--host", &hosts::list(request.agent_hosts), "-np", &n.to_string()]),
            None => agents.words(["--map-by", "ppr:1:node"]),
        };
        let agents =
            agents.words(["--bind-to", "none"]).words(request.agent.words()).words(request.agent_arguments);
        let mut ranks = Invocation::new(mpirun).words(request.options);
        for (name, value) in request.inherited.filter(|_| !has_variable_list(request)).into_iter().flatten() {
            ranks = ranks.words(["-x", &format!("{name}={value}")]);
        }
        for (i, context) in request.contexts.iter().enumerate() {
            ranks = if i > 0 { ranks.words([":"]) } else { ranks };
            if !request.hosts.is_empty() {
                ranks = ranks.words(["--host", &hosts::list(request.hosts)]);
            }
            if let Some(n) = context.ranks {
                ranks = ranks.words(["-np", &n.to_string()]);
            }
            ranks = ranks.words(request.rank(context));
        }
        Ok(LaunchPlan { agents, agent_count: request.agent_count(), ranks: vec![ranks] })
    }

    fn place(&self, variable: &dyn Fn(&str) -> Option<String>) -> Option<Place> {
        const VARIABLES: [&str; 4] =
            [RANK, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"];
        Place::from_variables(variable, VARIABLES)
    }

    fn rank_variable(&self) -> Option<&'static str> {
        Some(RANK)
    }

    fn job_key(&self) -> Option<String> {
        let namespace = std::env::var("PMIX_NAMESPACE").ok().filter(|name| !name.is_empty())?;
        Some(format!("pmix/{namespace}"))
    }

    fn missing_job_key(&self) -> Option<&'static str> {
        Some("PMIX_NAMESPACE is not set")
    }

    fn daemons(&self) -> &'static [&'static str] {
        &["orted", "orterun", "prted", "prterun"]
    }

    /// Recognises the paragraph by which mpirun refuses to run as root.
    fn diagnose(&self, lines: &[&str]) -> Option<Diagnosis> {
        if lines.iter().any(|line| line.contains("detected an attempt to run as root")) {
            return Some(Diagnosis {
                cause: "it refuses to run as root".into(),
                remedy: "Run as another user, or add --launcher-arg --allow-run-as-root".into(),
            });
        }
        diagnosis::unreachable_host(lines)
    }

    /// Recognises the sentence that names the first process that a signal has ended. The series 5
    /// prints it in two lines.
    fn ended_process(&self, lines: &[&str]) -> Option<EndedProcess> {
        let text = lines.join(" ");
        let (_, sentence) = text.split_once(" noticed that process rank ")?;
        let (_, place) = sentence.split_once(" on node ")?;
        let (host, end) = place.split_once(" exited on signal ")?;
        let digits = end.split(|c: char| !c.is_ascii_digit()).next()?;
        let is_name = !host.is_empty() && !host.contains(char::is_whitespace);
        is_name.then_some(EndedProcess { host: host.to_owned(), signal: digits.parse().ok()? })
    }

    fn oversubscribe(&self, release: &Release) -> &'static str {
        match release.major() {
            Some(5..) => "--map-by --launcher-arg :OVERSUBSCRIBE",
            _ => "--oversubscribe",
        }
    }

    /// Returns an option for the series 5 only: the series 4.1 binds no rank if a host has too few
    /// cores.
    fn option_beyond_cores(&self, release: &Release) -> Option<&'static str> {
        (release.major() >= Some(5)).then_some("--bind-to --launcher-arg none")
    }
}

/// Returns whether the user gives the ranks' variables as a list, next to which Open MPI refuses
/// `-x`.
fn has_variable_list(request: &LaunchRequest<'_>) -> bool {
    const LIST: &str = "mca_base_env_list";
    request.options.iter().any(|option| option.to_string_lossy().contains(LIST))
        || std::env::var_os(format!("OMPI_MCA_{LIST}")).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_open_mpi_are_recognized() {
        for (text, version, flavour) in [
            ("mpirun (Open MPI) 4.1.4\n\nReport bugs to x\n", "4.1.4", "openmpi4"),
            ("mpirun.openmpi (OpenRTE) 4.1.4\n", "4.1.4", "openmpi4"),
            ("mpirun (Open MPI) 5.0.6rc1\n", "5.0.6rc1", "openmpi5"),
            (
                "mpirun (Open MPI) 5.0.8\n\nReport bugs to https://www.open-mpi.org/community/help/\n",
                "5.0.8",
                "openmpi5",
            ),
        ] {
            let release = OpenMpi.recognize(text).unwrap();
            assert_eq!((&*release.version, release.flavour.as_deref()), (version, Some(flavour)), "{text}");
        }
        for text in ["", "usage: mpirun [options]\n", "mpirun (Open MPI)", "HYDRA build details:\n"] {
            assert_eq!(OpenMpi.recognize(text), None, "{text}");
        }
    }

    #[test]
    fn the_process_that_a_signal_has_ended_is_recognized() {
        let before = ["----", "Primary job  terminated normally, but 1 process returned"];
        let of_series_4 = [
            "mpirun.openmpi noticed that process rank 1 with PID 31 on node h1 exited on signal 9 (Killed).",
            "----",
        ];
        let of_series_5 = [
            "prterun noticed that process rank 1 with PID 31 on node h1 exited on",
            "signal 9 (Killed).",
            "----",
        ];
        for after in [&of_series_4[..], &of_series_5] {
            let ended = OpenMpi.ended_process(&[&before, after].concat());
            assert_eq!(ended, Some(EndedProcess { host: "h1".into(), signal: 9 }), "{after:?}");
        }
        let unknown = "mpirun noticed that the job aborted, but has no info as to the process that caused it";
        assert_eq!(OpenMpi.ended_process(&[unknown]), None);
        assert_eq!(OpenMpi.ended_process(&[]), None);
    }
}
