//! Slurm's way of counting the memory of a job in which all ranks of a host share a buffer.

use std::path::Path;

use super::Line;

const NAME: &str = "Slurm accounting";
const MEND: &str = "ask the administrator for JobAcctGatherParams=UsePss (or NoShared) in slurm.conf";

/// Tells it from what `scontrol` says, where that is in PATH; `ask` runs a program and returns what it prints.
pub(super) fn line(scontrol: &Path, ask: impl Fn(&Path, &[&str]) -> Result<String, String>) -> Line {
    match ask(scontrol, &["show", "config"]) {
        Ok(text) => accounting(&text),
        Err(why) => Line::note(NAME, format!("scontrol: {why}")),
    }
}

/// Reads the settings that decide whether a buffer counts once for each rank.
fn accounting(configuration: &str) -> Line {
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
        Line::ok(NAME, "Slurm measures no memory of processes")
    } else if kind.ends_with("/cgroup") {
        Line::ok(NAME, "Slurm measures memory by control groups, which count a page once")
    } else if let Some(word) = once {
        Line::ok(NAME, format!("JobAcctGatherParams has {word}: a buffer does not count once for each rank"))
    } else if has("OverMemoryKill") {
        let says = "Slurm adds up the resident memory of all ranks, so that a buffer counts once for each rank that touches it, \
                    and ends a job whose sum is over its limit (OverMemoryKill)";
        Line::lacks(NAME, says)
            .mend(MEND)
            .mend("until then: --mem for the size of the buffer times the ranks of a host")
    } else {
        let says = "Slurm adds up the resident memory of all ranks, so that sstat and sacct show a buffer once for each rank \
                    that touches it; it ends no job for that (no OverMemoryKill)";
        Line::note(NAME, says).mend(MEND)
    };
    line.value("gather_type", kind).value("gather_parameters", parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_decide_how_often_a_buffer_counts() {
        let text = |kind: &str, parameters: &str| {
            let settings =
                format!("JobAcctGatherType       = {kind}\nJobAcctGatherParams     = {parameters}\n");
            let line = accounting(&format!(
                "JobAcctGatherFrequency  = 30\n{settings}KillWait                = 30 sec\n"
            ));
            format!("{line:?}")
        };
        for (kind, parameters, words) in [
            ("jobacct_gather/none", "(null)", &["Ok", "measures no memory"][..]),
            ("jobacct_gather/cgroup", "OverMemoryKill", &["Ok", "control groups"]),
            ("jobacct_gather/linux", "UsePss,OverMemoryKill", &["Ok", "UsePss"]),
            ("jobacct_gather/linux", "NoShared", &["Ok", "NoShared"]),
            ("jobacct_gather/linux", "OverMemoryKill", &["Lacks", "ends a job", "UsePss (or NoShared)"]),
            ("jobacct_gather/linux", "(null)", &["Note", "sstat and sacct", "UsePss (or NoShared)"]),
        ] {
            let said = text(kind, parameters);
            assert!(words.iter().all(|word| said.contains(word)), "{kind} {parameters}: {said}");
        }
    }
}
