//! MPICH and its relatives: mpiexec of the process manager Hydra.
//!
//! Names: MPICH, Hydra, MVAPICH.

use hostbuf::Result;

use super::abi::{self, Abi};
use super::diagnosis::{self, EndedProcess};
use super::engine::{Engine, Replacement};
use super::hydra;
use super::place::Place;
use super::plan::{LaunchPlan, LaunchRequest, ManagedStart};
use super::release::Release;
use crate::hosts;

/// The engine MPICH.
pub(crate) struct Mpich;

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

    /// Recognises Hydra by its version text. MVAPICH has Hydra too; the agents for its binary
    /// interfaces serve it.
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
        name == abi::STANDARD.library
            || name.starts_with("libmpi")
                && name.split_once(".so.").is_some_and(|(_, v)| v.split('.').next() == Some("12"))
    }

    fn abis(&self) -> &'static [Abi] {
        abi::SHARED
    }

    fn package(&self) -> Option<&'static str> {
        Some("mpich")
    }

    fn flavours(&self) -> &'static [&'static str] {
        &["mpich4"]
    }

    fn managed_start(&self) -> Option<ManagedStart> {
        Some(ManagedStart { protocol: "pmi2", variables: &[] })
    }

    fn replacements(&self) -> &'static [Replacement] {
        hydra::REPLACEMENTS
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
        Ok(hydra::plan(request, &["-bind-to", "none"], |ranks, list| {
            ranks.words(["-hosts", &hosts::list(list)])
        }))
    }

    fn place(&self, variable: &dyn Fn(&str) -> Option<String>) -> Option<Place> {
        hydra::place(variable)
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
        &[hydra::PROXY]
    }

    fn reports_unreachable_host(&self, line: &str) -> bool {
        diagnosis::is_of_ssh(line)
    }

    /// Reads the "exit code" of the ended process: it is the status that the kernel gives to its
    /// parent, so its low bits are the signal.
    fn ended_process(&self, lines: &[&str]) -> Option<EndedProcess> {
        hydra::ended_process(lines, |line| {
            let status: i32 = line.strip_prefix("EXIT CODE: ")?.parse().ok()?;
            Some(status & 0x7f).filter(|&signal| signal > 0)
        })
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
