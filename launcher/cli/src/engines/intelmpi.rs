//! Intel MPI: mpiexec of its own variant of the process manager Hydra.
//!
//! Names: Intel MPI, intelmpi, I_MPI_, Hydra, HYDRA_BSTRAP_.

use std::borrow::Cow;

use hostbuf::Result;

use super::abi::{self, Abi};
use super::diagnosis::{self, EndedProcess};
use super::engine::{Engine, Replacement};
use super::hydra;
use super::place::Place;
use super::plan::{LaunchPlan, LaunchRequest};
use super::release::Release;

/// The engine Intel MPI.
pub(crate) struct IntelMpi;

/// The options that leave ranks on all CPUs.
const NO_BINDING: [&str; 3] = ["-genv", PIN, "0"];
/// The variable that turns binding off, and the beginning of those that say how to bind.
const PIN: &str = "I_MPI_PIN";
/// A variable that only this variant of Hydra gives to its ranks.
const NODE: &str = "HYDRA_BSTRAP_NODE_ID";

impl Engine for IntelMpi {
    fn name(&self) -> &'static str {
        "Intel MPI"
    }

    fn option(&self) -> &'static str {
        "intelmpi"
    }

    fn help(&self) -> &'static str {
        "Use mpiexec of Intel MPI"
    }

    fn recognize(&self, version: &str) -> Option<Release> {
        let (_, rest) = version.split_once("Intel(R) MPI Library")?;
        let number = rest.split_once("Version")?.1.split_whitespace().next()?;
        Some(Release::new(self.name(), number.to_owned(), Some(self.option())))
    }

    /// Returns true for the libraries with the binary interface of MPICH, and for the standard one.
    fn provides_library(&self, name: &str) -> bool {
        self.abis().iter().any(|abi| abi.library == name)
    }

    fn abis(&self) -> &'static [Abi] {
        abi::SHARED
    }

    fn replacements(&self) -> &'static [Replacement] {
        hydra::REPLACEMENTS
    }

    fn no_binding(&self) -> &'static [&'static str] {
        &NO_BINDING
    }

    /// Recognises the option, and the variables if they are set by an option.
    fn is_binding(&self, options: &[Cow<'_, str>]) -> bool {
        options.iter().any(|word| word == "-cpu-bind" || word.starts_with(PIN))
    }

    fn placing_options(&self) -> &'static [(&'static str, usize)] {
        &[
            ("-ppn", 1),
            ("-perhost", 1),
            ("-rr", 0),
            ("-grr", 1),
            ("-hosts-group", 1),
            ("-cpu-bind", 1),
            ("-n", 1),
            ("-np", 1),
            ("-l", 0),
            ("-prepend-rank", 0),
        ]
    }

    /// Names the hosts in a file, since this mpiexec ignores the slots in its list of hosts.
    fn plan(&self, request: &LaunchRequest<'_>) -> Result<LaunchPlan> {
        Ok(hydra::plan(request, &NO_BINDING, |ranks, list| {
            let mut ranks = ranks.words(["-machinefile", ""]);
            let lines = list.iter().map(|host| format!("{}:{}\n", host.name, host.slots));
            ranks.script = Some((lines.collect(), ranks.words.len() - 1));
            ranks
        }))
    }

    fn place(&self, variable: &dyn Fn(&str) -> Option<String>) -> Option<Place> {
        variable(NODE).and_then(|_| hydra::place(variable))
    }

    fn rank_variable(&self) -> Option<&'static str> {
        Some(hydra::RANK)
    }

    fn job_key(&self) -> Option<String> {
        hydra::job_key()
    }

    fn missing_job_key(&self) -> Option<&'static str> {
        Some(hydra::MISSING_JOB_KEY)
    }

    fn daemons(&self) -> &'static [&'static str] {
        &[hydra::PROXY, "hydra_bstrap_proxy"]
    }

    fn reports_unreachable_host(&self, line: &str) -> bool {
        diagnosis::is_of_ssh(line)
    }

    /// Reads a line such as `KILLED BY SIGNAL: 9 (Killed)`.
    fn ended_process(&self, lines: &[&str]) -> Option<EndedProcess> {
        hydra::ended_process(lines, |line| {
            line.strip_prefix("KILLED BY SIGNAL: ")?.split_whitespace().next()?.parse().ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_intel_mpi_are_recognized() {
        let text = "Intel(R) MPI Library for Linux* OS, Version 2021.19.0 Build 20260929 (id: 1821d9b)\n";
        let release = Release::new("Intel MPI", "2021.19.0".into(), Some("intelmpi"));
        assert_eq!(release.flavour.as_deref(), Some("intelmpi2021"));
        assert_eq!(IntelMpi.recognize(text), Some(release));
        assert_eq!(IntelMpi.recognize("HYDRA build details:\n    Version: 4.0.2\n"), None);
    }

    #[test]
    fn ranks_of_mpich_are_not_ranks_of_intel_mpi() {
        let place = |with_node: bool| {
            IntelMpi.place(&|name| (name != NODE || with_node).then(|| "1".to_owned())).is_some()
        };
        assert!(place(true) && !place(false));
    }

    #[test]
    fn the_process_that_a_signal_has_ended_is_recognized() {
        let lines = [
            "[mpiexec@h0] a message",
            "===================================================================================",
            "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
            "=   RANK 0 PID 673 RUNNING AT h1",
            "=   KILLED BY SIGNAL: 9 (Killed)",
        ];
        let ended = IntelMpi.ended_process(&lines);
        assert_eq!(ended, Some(EndedProcess { host: "h1".into(), signal: 9 }));
        assert_eq!(IntelMpi.ended_process(&lines[..4]), None);
    }
}
