//! Slurm's memory accounting for a job in which all ranks of a host share a buffer.

use std::path::Path;

use super::super::engine::Query;
use crate::finding::Finding;

const NAME: &str = "Slurm accounting";
const MEND: &str = "ask the administrator for JobAcctGatherParams=UsePss (or NoShared) in slurm.conf";

/// Checks Slurm's accounting with `scontrol show config`.
pub(super) fn check(scontrol: &Path, query: Query<'_>) -> Finding {
    match query(scontrol, &["show", "config"]) {
        Ok(text) => accounting(&text),
        Err(why) => Finding::note(NAME, format!("scontrol: {why}")),
    }
}

/// Checks the settings that decide whether a buffer counts once for each rank.
fn accounting(configuration: &str) -> Finding {
    let setting = |name: &str| {
        let value = configuration.lines().find_map(|line| {
            let (key, value) = line.split_once('=')?;
            (key.trim() == name).then(|| value.trim().to_owned())
        });
        value.unwrap_or_default()
    };
    let (kind, parameters) = (setting("JobAcctGatherType"), setting("JobAcctGatherParams"));
    let has = |word: &str| parameters.split(',').any(|p| p.trim().eq_ignore_ascii_case(word));
    let once = ["UsePss", "NoShared"].into_iter().find(|word| has(word));
    let line = if kind.is_empty() || kind.ends_with("/none") {
        Finding::ok(NAME, "Slurm does not measure the memory of processes")
    } else if kind.ends_with("/cgroup") {
        Finding::ok(NAME, "Slurm measures memory with control groups, which count a shared page once")
    } else if let Some(word) = once {
        Finding::ok(
            NAME,
            format!("JobAcctGatherParams has {word}: a buffer does not count once for each rank"),
        )
    } else if has("OverMemoryKill") {
        let says = "Slurm adds up the resident memory of all ranks, so a buffer counts once for each rank that touches it, and \
                    Slurm ends a job whose sum exceeds its limit (OverMemoryKill)";
        Finding::lacks(NAME, says)
            .mend(MEND)
            .mend("until then, request --mem for the size of the buffer times the ranks of a host")
    } else {
        let says = "Slurm adds up the resident memory of all ranks, so sstat and sacct count a buffer once for each rank that \
                    touches it; Slurm does not end the job for that (OverMemoryKill is not set)";
        Finding::note(NAME, says).mend(MEND)
    };
    line.value("gather_type", kind).value("gather_parameters", parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accounting_settings_determine_the_charge_for_a_buffer() {
        let text = |kind: &str, parameters: &str| {
            let settings =
                format!("JobAcctGatherType       = {kind}\nJobAcctGatherParams     = {parameters}\n");
            let line = accounting(&format!(
                "JobAcctGatherFrequency  = 30\n{settings}KillWait                = 30 sec\n"
            ));
            format!("{line:?}")
        };
        for (kind, parameters, words) in [
            ("jobacct_gather/none", "(null)", &["Ok", "does not measure"][..]),
            ("jobacct_gather/cgroup", "OverMemoryKill", &["Ok", "control groups"]),
            ("jobacct_gather/linux", "UsePss,OverMemoryKill", &["Ok", "UsePss"]),
            ("jobacct_gather/linux", "NoShared", &["Ok", "NoShared"]),
            (
                "jobacct_gather/linux",
                "OverMemoryKill",
                &["Lacks", "Slurm ends a job", "UsePss (or NoShared)"],
            ),
            ("jobacct_gather/linux", "(null)", &["Note", "sstat and sacct", "UsePss (or NoShared)"]),
        ] {
            let said = text(kind, parameters);
            assert!(words.iter().all(|word| said.contains(word)), "{kind} {parameters}: {said}");
        }
    }
}
