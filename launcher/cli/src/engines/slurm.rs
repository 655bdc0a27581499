//! Slurm: srun inside an allocation.
//!
//! Names: Slurm, slurmd, slurmstepd, srun, salloc, sbatch, scontrol.

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::Path;

use hostbuf::Result;
use nix::sys::resource::Resource;
use nix::sys::signal::Signal;

use super::diagnosis::EndedProcess;
use super::engine::{AgentKind, Engine, HOST, LaunchCommand, Query, RANKS_OF_HOSTS, Replacement};
use super::place::Place;
use super::plan::{Invocation, LaunchPlan, LaunchRequest, ManagedStart};
use super::release::Release;
use crate::finding::Finding;
use crate::hosts;
use crate::search_path;

/// The engine Slurm.
pub(crate) struct Slurm;

/// The variable that Slurm sets inside an allocation.
const JOB: &str = "SLURM_JOB_ID";
/// The variable with the number of a rank.
const RANK: &str = "SLURM_PROCID";
/// The name of the finding about Slurm's accounting.
const ACCOUNTING: &str = "Slurm accounting";
/// The remedy for an accounting that counts a buffer once for each rank.
const ACCOUNTING_REMEDY: &str =
    "ask the administrator for JobAcctGatherParams=UsePss (or NoShared) in slurm.conf";

/// The signals that end an agent by themselves, with their descriptions by strsignal(3).
const CAUSES: [(&str, Signal); 6] = [
    ("Killed", Signal::SIGKILL),
    ("Segmentation fault", Signal::SIGSEGV),
    ("Bus error", Signal::SIGBUS),
    ("Aborted", Signal::SIGABRT),
    ("Illegal instruction", Signal::SIGILL),
    ("Bad system call", Signal::SIGSYS),
];

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Engine for Slurm {
    fn name(&self) -> &'static str {
        "Slurm"
    }

    fn option(&self) -> &'static str {
        "slurm"
    }

    fn help(&self) -> &'static str {
        "Use srun of Slurm, inside an allocation"
    }

    fn commands(&self) -> &'static [&'static str] {
        &["srun"]
    }

    fn recognize(&self, version: &str) -> Option<Release> {
        let first = version.lines().next().filter(|line| line.starts_with("slurm"))?;
        Some(Release::new(self.name(), first.split_whitespace().nth(1).unwrap_or_default().into(), None))
    }

    fn without_mpirun(&self) -> Option<std::result::Result<LaunchCommand, String>> {
        if std::env::var_os(JOB).is_none() {
            return Some(Err("this process is not inside a Slurm allocation, and two jobs that wait in the queue (agents and \
                             program) could wait for ever. Run `hostbuf run` inside `salloc` or `sbatch`"
                .into()));
        }
        let Some(path) = search_path::find("srun") else { return Some(Err("srun is not in PATH".into())) };
        Some(Ok(LaunchCommand {
            engine: &Slurm,
            path,
            release: Release::new(self.name(), String::new(), None),
        }))
    }

    fn agent(&self) -> AgentKind {
        AgentKind::AnyMpi
    }

    fn replacements(&self) -> &'static [Replacement] {
        &[
            Replacement { names: &["w", "nodelist"], instead: HOST },
            Replacement { names: &["ntasks-per-node"], instead: RANKS_OF_HOSTS },
            Replacement { names: &["ntasks"], instead: "-n" },
            Replacement {
                names: &["cpu-bind", "cpu_bind"],
                instead: "--launcher-arg --cpu-bind=VALUE, the engine's option, since hostbuf binds no rank without --bind",
            },
        ]
    }

    fn placing_options(&self) -> &'static [(&'static str, usize)] {
        &[
            ("-N", 1),
            ("--nodes", 1),
            ("-n", 1),
            ("--ntasks", 1),
            ("--ntasks-per-node", 1),
            ("--distribution", 1),
            ("-m", 1),
            ("--cpu-bind", 1),
            ("--cpu_bind", 1),
            ("--hint", 1),
            ("--cpus-per-task", 1),
            ("-c", 1),
            ("--mpi", 1),
            ("--label", 0),
            ("-l", 0),
            ("--multi-prog", 0),
            ("--input", 1),
            ("--output", 1),
            ("--error", 1),
            ("--signal", 1),
        ]
    }

    fn no_binding(&self) -> &'static [&'static str] {
        &["--cpu-bind=none"]
    }

    /// Recognises `--cpu-bind`, and `--hint`, which excludes it.
    fn is_binding(&self, options: &[Cow<'_, str>]) -> bool {
        const OPTIONS: [&str; 3] = ["--cpu-bind", "--cpu_bind", "--hint"];
        options.iter().any(|word| OPTIONS.iter().any(|option| word.starts_with(option)))
    }

    fn plan(&self, request: &LaunchRequest<'_>) -> Result<LaunchPlan> {
        let srun = request.command;
        let on_hosts = |line: Invocation| {
            if request.hosts.is_empty() {
                return line;
            }
            line.words(["-w", &hosts::names(request.hosts), "-N", &request.hosts.len().to_string()])
        };
        let count = match request.hosts.len() {
            0 => request.allocated_hosts.unwrap_or("1").to_owned(),
            count => count.to_string(),
        };
        let ManagedStart { protocol, variables } =
            request.agent.managed_start.unwrap_or(ManagedStart { protocol: "none", variables: &[] });
        let agents = Invocation::new(srun).words(["--overlap", "--quiet", "--kill-on-bad-exit=1"]);
        let mut agents = on_hosts(agents.words(request.agent_options))
            .words(["-N", &count, "-n", &count, "--ntasks-per-node=1", "--cpu-bind=none", "--input=none"])
            .words([&format!("--mpi={protocol}")])
            .words(request.agent.words())
            .words(request.agent_arguments);
        for (name, value) in variables {
            if std::env::var_os(name).is_none() {
                agents.variables.push(((*name).into(), (*value).into()));
            }
        }
        let mut ranks = on_hosts(Invocation::new(srun).words(["--overlap"]).words(request.options));
        if let Some(n) = request.ranks {
            ranks = ranks.words(["-n", &n.to_string()]);
        }
        if let [context] = request.contexts {
            ranks = ranks.words(request.rank(context));
        } else {
            ranks = ranks.words(["--multi-prog", ""]);
            ranks.script = Some((programs(request), ranks.words.len() - 1));
        }
        Ok(LaunchPlan { agents, agent_count: count.parse().ok(), ranks: vec![ranks] })
    }

    fn allocated_hosts(&self) -> Option<String> {
        variable("SLURM_JOB_NUM_NODES").or_else(|| variable("SLURM_NNODES"))
    }

    /// Allows job steps to overlap. Otherwise the second job of an allocation waits for the first
    /// one to end.
    fn allocation_variables(&self) -> &'static [(&'static str, &'static str)] {
        if std::env::var_os(JOB).is_some() { &[("SLURM_OVERLAP", "1")] } else { &[] }
    }

    fn allocation_variable(&self) -> Option<&'static str> {
        Some(JOB)
    }

    fn limit_remedy(&self, limit: Resource) -> Option<&'static str> {
        match limit {
            Resource::RLIMIT_MEMLOCK => Some(
                "slurm.conf: PropagateResourceLimitsExcept=MEMLOCK, and LimitMEMLOCK=infinity in slurmd.service",
            ),
            Resource::RLIMIT_AS => Some("slurm.conf: VSizeFactor=0, PropagateResourceLimitsExcept=AS"),
            _ => None,
        }
    }

    fn place(&self, variable: &dyn Fn(&str) -> Option<String>) -> Option<Place> {
        let number = |name: &str| variable(name)?.parse().ok();
        let tasks = variable("SLURM_STEP_TASKS_PER_NODE").or_else(|| variable("SLURM_TASKS_PER_NODE"))?;
        Some(Place {
            rank: number(RANK)?,
            size: number("SLURM_STEP_NUM_TASKS").or_else(|| number("SLURM_NTASKS")).unwrap_or(0),
            local_rank: number("SLURM_LOCALID")?,
            local_size: tasks_of(&tasks, number("SLURM_NODEID")?)?,
        })
    }

    fn rank_variable(&self) -> Option<&'static str> {
        Some(RANK)
    }

    fn job_key(&self) -> Option<String> {
        Some(format!("slurm/{}.{}", variable(JOB)?, variable("SLURM_STEP_ID")?))
    }

    fn missing_job_key(&self) -> Option<&'static str> {
        Some("SLURM_STEP_ID is not set (in a batch script, put srun in front)")
    }

    fn daemons(&self) -> &'static [&'static str] {
        &["slurmstepd"]
    }

    /// Returns true for a segmentation fault. Open MPI 4.1 sometimes crashes in its start under
    /// srun, more often on a busy machine.
    fn reports_crash(&self, line: &str) -> bool {
        line.contains("Segmentation fault")
    }

    /// Recognises srun's line about the first process that has ended. srun describes the signal as
    /// strsignal(3) does. It ends the others by SIGTERM, so that signal is no cause.
    fn ended_process(&self, lines: &[&str]) -> Option<EndedProcess> {
        let (place, end) = lines.iter().find_map(|line| {
            let (host, task) = line.strip_prefix("srun: error: ")?.split_once(": task ")?;
            let (number, end) = task.split_once(": ")?;
            number.parse::<u32>().is_ok().then_some((host, end))
        })?;
        let end = end.trim_end_matches(" (core dumped)");
        let &(_, signal) = CAUSES.iter().find(|(text, _)| *text == end)?;
        Some(EndedProcess { host: place.to_owned(), signal: signal as i32 })
    }

    fn shortage(&self, ranks: usize, _: &Release) -> (String, String) {
        (
            format!("-n {ranks} may exceed the tasks of the allocation"),
            "ask salloc or sbatch for more tasks".into(),
        )
    }

    fn oversubscribe(&self, _: &Release) -> &'static str {
        "--overcommit"
    }

    fn check(&self, query: Query<'_>) -> Vec<Finding> {
        let scontrol = search_path::find("scontrol");
        let accounting = scontrol.map(|scontrol| check_accounting(&scontrol, query));
        [Some(allocation()), accounting].into_iter().flatten().collect()
    }
}

/// Returns the text of a file of several programs: in each line a range of ranks, then a command
/// line in quotes.
fn programs(request: &LaunchRequest<'_>) -> String {
    let quote = |word: &OsString| format!("'{}'", word.to_string_lossy().replace('\'', "'\\''"));
    let mut text = String::new();
    let mut first = 0;
    for context in request.contexts {
        let n = context.ranks.unwrap_or(1);
        let words: Vec<String> = request.rank(context).iter().map(quote).collect();
        text += &format!("{first}-{} {}\n", first + n - 1, words.join(" "));
        first += n;
    }
    text
}

/// Returns the number of tasks on host `host` from a list of Slurm: `2(x3),1` means 2, 2, 2, 1.
fn tasks_of(list: &str, host: u64) -> Option<u64> {
    let mut left = host;
    for part in list.split(',') {
        let (tasks, times) = match part.split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1u64),
        };
        if left < times {
            return tasks.parse().ok();
        }
        left -= times;
    }
    None
}

/// Checks whether this process is inside an allocation, and its limits.
fn allocation() -> Finding {
    const NAME: &str = "Slurm allocation";
    let Ok(job) = std::env::var(JOB) else {
        return Finding::ok(NAME, "this is not inside one: hosts come from --host or --hostfile")
            .value("job", serde_json::Value::Null);
    };
    let hosts = std::env::var("SLURM_JOB_NODELIST").unwrap_or_else(|_| "?".into());
    let says = format!("job {job} on {hosts}: both steps of hostbuf run with --overlap");
    let finding = match std::env::var("SLURM_MEM_PER_NODE") {
        Ok(mib) => {
            Finding::ok(NAME, format!("{says}; {mib} MiB of memory on each host")).value("memory_mib", mib)
        }
        Err(_) => Finding::ok(NAME, says),
    };
    finding.value("job", job).value("hosts", hosts)
}

/// Checks Slurm's memory accounting with `scontrol show config`: all ranks of a host share a
/// buffer.
fn check_accounting(scontrol: &Path, query: Query<'_>) -> Finding {
    match query(scontrol, &["show", "config"]) {
        Ok(text) => accounting(&text),
        Err(why) => Finding::note(ACCOUNTING, format!("scontrol: {why}")),
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
        Finding::ok(ACCOUNTING, "Slurm does not measure the memory of processes")
    } else if kind.ends_with("/cgroup") {
        Finding::ok(ACCOUNTING, "Slurm measures memory with control groups, which count a shared page once")
    } else if let Some(word) = once {
        Finding::ok(
            ACCOUNTING,
            format!("JobAcctGatherParams has {word}: a buffer does not count once for each rank"),
        )
    } else if has("OverMemoryKill") {
        let says = "Slurm adds up the resident memory of all ranks, so a buffer counts once for each rank that touches it, and \
                    Slurm ends a job whose sum exceeds its limit (OverMemoryKill)";
        Finding::lacks(ACCOUNTING, says)
            .mend(ACCOUNTING_REMEDY)
            .mend("until then, request --mem for the size of the buffer times the ranks of a host")
    } else {
        let says = "Slurm adds up the resident memory of all ranks, so sstat and sacct count a buffer once for each rank that \
                    touches it; Slurm does not end the job for that (OverMemoryKill is not set)";
        Finding::note(ACCOUNTING, says).mend(ACCOUNTING_REMEDY)
    };
    line.value("gather_type", kind).value("gather_parameters", parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_lists_are_parsed() {
        assert_eq!(tasks_of("2(x3),1", 2), Some(2));
        assert_eq!(tasks_of("2(x3),1", 3), Some(1));
        assert_eq!(tasks_of("2(x3),1", 4), None);
        assert_eq!(tasks_of("4", 0), Some(4));
        assert_eq!(tasks_of("rubbish", 0), None);
    }

    #[test]
    fn versions_of_slurm_are_recognized() {
        for (text, version) in [("slurm-wlm 22.05.8\n", "22.05.8"), ("slurm 23.11.4\n", "23.11.4")] {
            assert_eq!(Slurm.recognize(text), Some(Release::new("Slurm", version.into(), None)));
        }
        assert_eq!(Slurm.recognize("usage: srun"), None);
    }

    #[test]
    fn the_process_that_a_signal_has_ended_is_recognized() {
        let after = [
            "srun: launch/slurm: _step_signal: Terminating StepId=1.1",
            "srun: error: h0: task 0: Terminated",
            "slurmstepd-h0: error: *** STEP 1.1 ON h0 CANCELLED AT 2026-01-01T00:00:00 ***",
            "srun: error: h2: task 2: Killed",
        ];
        for (line, signal) in [
            ("srun: error: h1: task 1: Killed", 9),
            ("srun: error: h1: task 1: Segmentation fault (core dumped)", 11),
        ] {
            let ended = Slurm.ended_process(&[&["a line of the agent", line], &after[..]].concat());
            assert_eq!(ended, Some(EndedProcess { host: "h1".into(), signal }), "{line}");
        }
        for line in
            ["srun: error: h1: task 1: Exited with exit code 87", "srun: error: h[0-3]: tasks 0-3: Killed"]
        {
            assert_eq!(Slurm.ended_process(&[&[line], &after[..3]].concat()), None, "{line}");
        }
        assert_eq!(Slurm.ended_process(&after), None);
    }

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
