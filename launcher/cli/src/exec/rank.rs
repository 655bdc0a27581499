//! Who this process is in its job, as the engine's environment tells.

use std::env;

use hostbuf::internal::wire::{ENV_LOCAL_RANK, ENV_LOCAL_SIZE};
use hostbuf::os::process;

/// A rank's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) rank: u64,
    /// 0 when the engine does not say.
    pub(super) size: u64,
    pub(super) local_rank: u64,
    pub(super) local_size: u64,
}

/// Rank, size, local rank, local size, by the first engine whose variables are there. An mpirun inside a Slurm
/// allocation leaves Slurm's variables standing, so the MPIs come before Slurm.
const ENGINES: [[&str; 4]; 3] = [
    ["HOSTBUF_RANK", "HOSTBUF_RANKS", ENV_LOCAL_RANK, ENV_LOCAL_SIZE],
    [
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ],
    ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
];

impl Place {
    /// This process's place; alone when no engine has started it.
    pub(super) fn find() -> Place {
        Place::from(|name| env::var(name).ok())
    }

    fn from(variable: impl Fn(&str) -> Option<String>) -> Place {
        let number = |name: &str| variable(name)?.parse::<u64>().ok();
        for [rank, size, local_rank, local_size] in ENGINES {
            if let (Some(rank), Some(local_rank), Some(local_size)) =
                (number(rank), number(local_rank), number(local_size))
            {
                return Place { rank, size: number(size).unwrap_or(0), local_rank, local_size };
            }
        }
        let node = number("SLURM_NODEID");
        let tasks = variable("SLURM_STEP_TASKS_PER_NODE").or_else(|| variable("SLURM_TASKS_PER_NODE"));
        if let (Some(rank), Some(local_rank), Some(node), Some(tasks)) =
            (number("SLURM_PROCID"), number("SLURM_LOCALID"), node, tasks)
        {
            let size = number("SLURM_STEP_NUM_TASKS").or_else(|| number("SLURM_NTASKS")).unwrap_or(0);
            if let Some(local_size) = tasks_of(&tasks, node) {
                return Place { rank, size, local_rank, local_size };
            }
        }
        Place { rank: 0, size: 1, local_rank: 0, local_size: 1 }
    }
}

/// The number for one node in Slurm's list: `2(x3),1` means 2, 2, 2, 1.
fn tasks_of(list: &str, node: u64) -> Option<u64> {
    let mut left = node;
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

/// What all ranks of one job on this host, and only they, have in common: by it they find each other.
pub(super) fn job_key() -> Option<String> {
    let text = |name: &str| env::var(name).ok().filter(|v| !v.is_empty());
    if let Some(namespace) = text("PMIX_NAMESPACE") {
        return Some(format!("pmix/{namespace}"));
    }
    if let Some(proxy) = hydra_proxy() {
        return Some(proxy);
    }
    let (job, step) = (text("SLURM_JOB_ID")?, text("SLURM_STEP_ID")?);
    Some(format!("slurm/{job}.{step}"))
}

/// Hydra gives its ranks no name for the job, but one proxy on each host is above them all.
fn hydra_proxy() -> Option<String> {
    env::var_os("PMI_RANK")?;
    let mut pid = nix::unistd::getppid().as_raw();
    while pid > 1 {
        if process::name(pid).starts_with("hydra_pmi_proxy") {
            return Some(format!("hydra/{pid}.{}", process::start_time(pid)?));
        }
        pid = process::parent(pid)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurm_lists() {
        assert_eq!(tasks_of("2(x3),1", 2), Some(2));
        assert_eq!(tasks_of("2(x3),1", 3), Some(1));
        assert_eq!(tasks_of("2(x3),1", 4), None);
        assert_eq!(tasks_of("4", 0), Some(4));
        assert_eq!(tasks_of("rubbish", 0), None);
    }

    #[test]
    fn an_mpirun_inside_slurm_counts_by_mpirun() {
        let variable = |name: &str| {
            let value = match name {
                "OMPI_COMM_WORLD_RANK" => "5",
                "OMPI_COMM_WORLD_SIZE" => "8",
                "OMPI_COMM_WORLD_LOCAL_RANK" => "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE" => "2",
                "SLURM_PROCID" | "SLURM_LOCALID" | "SLURM_NODEID" => "0",
                "SLURM_TASKS_PER_NODE" => "1(x4)",
                _ => return None,
            };
            Some(value.to_owned())
        };
        assert_eq!(Place::from(variable), Place { rank: 5, size: 8, local_rank: 1, local_size: 2 });
        assert_eq!(Place::from(|_| None), Place { rank: 0, size: 1, local_rank: 0, local_size: 1 });
    }
}
