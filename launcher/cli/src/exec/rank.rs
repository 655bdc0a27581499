//! The place of this process in its job, and the name of the job, from the environment that the
//! engine has set.

use crate::engines::{self, Engine, Place};

/// Returns the engine that has started this process, or `None` if none has.
pub(super) fn engine() -> Option<&'static dyn Engine> {
    let variable = |name: &str| std::env::var(name).ok();
    engines::ALL.iter().find(|engine| engine.place(&variable).is_some()).copied()
}

/// Returns the place of this process: alone if no engine has started it.
pub(super) fn place() -> Place {
    place_from(&|name| std::env::var(name).ok())
}

fn place_from(variable: &dyn Fn(&str) -> Option<String>) -> Place {
    engines::ALL.iter().find_map(|engine| engine.place(variable)).unwrap_or(Place::ALONE)
}

/// Returns the name that all ranks of this job on this host have in common, and no others, so that
/// they find each other.
///
/// # Errors
/// The reason why there is none, if no engine provides it.
pub(super) fn job_key() -> Result<String, String> {
    let missing = || engines::ALL.iter().filter_map(|engine| engine.missing_job_key()).collect::<Vec<_>>();
    engines::ALL.iter().find_map(|engine| engine.job_key()).ok_or_else(|| missing().join("; "))
}

/// Returns whether a process of this name is an engine's daemon above the ranks of a host.
pub(super) fn is_daemon(name: &str) -> bool {
    let own = engines::ALL.iter().flat_map(|engine| engine.daemons());
    engines::COMMON_COMMANDS.iter().chain(own).any(|daemon| name.starts_with(daemon))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(place_from(&variable), Place { rank: 5, size: 8, local_rank: 1, local_size: 2 });
        let in_slurm = |name: &str| variable(name).filter(|_| name.starts_with("SLURM"));
        assert_eq!(place_from(&in_slurm), Place { rank: 0, size: 0, local_rank: 0, local_size: 1 });
        assert_eq!(place_from(&|_| None), Place { rank: 0, size: 1, local_rank: 0, local_size: 1 });
    }
}
