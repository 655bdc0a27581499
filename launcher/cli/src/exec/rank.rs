//! The place of this process in its job, and the name of the job, from the environment that the
//! engine has set.

use std::process::Command;

use hostbuf_protocol::environment::{
    ENV_LAUNCHED_RANK, ENV_LAUNCHED_RANKS, ENV_LOCAL_RANK, ENV_LOCAL_SIZE, ENV_RANK, ENV_RANKS,
};

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

/// Returns a warning if a launcher without an engine has started this process as one of its ranks.
pub(super) fn unknown_launcher() -> Option<String> {
    unknown_launcher_from(&|name| std::env::var(name).ok())
}

fn unknown_launcher_from(variable: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    if engines::ALL.iter().any(|engine| engine.place(variable).is_some()) {
        return None;
    }
    let (name, launcher) = engines::OTHER_LAUNCHERS.iter().find(|(name, _)| variable(name).is_some())?;
    Some(format!(
        "{name} is set by {launcher}, which hostbuf does not know, so this rank is alone in a job of its own, with a \
         buffer of its own. Start the ranks by `hostbuf run`, or by the mpirun of their MPI"
    ))
}

/// Sets the variables with the place of a rank for its program, and removes those that an enclosing
/// job has set. They have the same names under every engine, and no engine reads them.
pub(super) fn set(place: Place, command: &mut Command) {
    let Place { rank, size, local_rank, local_size } = place;
    command.env_remove(ENV_LAUNCHED_RANK).env_remove(ENV_LAUNCHED_RANKS);
    command.env_remove(ENV_RANKS).envs((size > 0).then(|| (ENV_RANKS, size.to_string())));
    for (name, number) in [(ENV_RANK, rank), (ENV_LOCAL_RANK, local_rank), (ENV_LOCAL_SIZE, local_size)] {
        command.env(name, number.to_string());
    }
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

    #[test]
    fn a_job_inside_a_rank_counts_by_its_own_engine() {
        // The program of rank 3 of 4 has started a rank of a second job.
        let inherited = |name: &str| {
            let names = [ENV_RANK, ENV_RANKS, ENV_LOCAL_RANK, ENV_LOCAL_SIZE];
            let at = names.iter().position(|known| *known == name)?;
            Some(["3", "4", "3", "4"][at].to_owned())
        };
        assert_eq!(place_from(&inherited), Place::ALONE);
        let inner = |name: &str| match name {
            "PMI_RANK" | "MPI_LOCALRANKID" => Some("1".to_owned()),
            "PMI_SIZE" | "MPI_LOCALNRANKS" => Some("2".to_owned()),
            other => inherited(other),
        };
        assert_eq!(place_from(&inner), Place { rank: 1, size: 2, local_rank: 1, local_size: 2 });
        let launched = |name: &str| match name {
            ENV_LAUNCHED_RANK => Some("0".to_owned()),
            ENV_LAUNCHED_RANKS => Some("5".to_owned()),
            other => inner(other),
        };
        assert_eq!(place_from(&launched), Place { rank: 0, size: 5, local_rank: 0, local_size: 5 });
    }

    #[test]
    fn a_rank_of_an_unknown_launcher_is_reported() {
        let with = |names: &'static [&'static str]| {
            unknown_launcher_from(&move |name| names.contains(&name).then(|| "1".to_owned()))
        };
        let flux = with(&["FLUX_TASK_RANK"]).unwrap();
        assert!(flux.starts_with("FLUX_TASK_RANK is set by Flux,"), "{flux}");
        assert!(with(&["PALS_RANKID"]).is_some());
        assert_eq!(with(&[]), None);
        // An engine below it has started the rank.
        let names = [ENV_LAUNCHED_RANK, ENV_LAUNCHED_RANKS, "PALS_RANKID"];
        assert_eq!(unknown_launcher_from(&|name| names.contains(&name).then(|| "1".to_owned())), None);
    }

    #[test]
    fn a_program_gets_the_place_of_its_rank_alone() {
        let variables = |place: Place| {
            let mut command = Command::new("true");
            set(place, &mut command);
            let text = |text: &std::ffi::OsStr| text.to_str().map(str::to_owned);
            let list: Vec<_> =
                command.get_envs().map(|(name, value)| (text(name).unwrap(), value.and_then(text))).collect();
            list
        };
        let place = Place { rank: 5, size: 8, local_rank: 1, local_size: 2 };
        let expected = |name: &str| match name {
            ENV_RANK => Some("5"),
            ENV_RANKS => Some("8"),
            ENV_LOCAL_RANK => Some("1"),
            ENV_LOCAL_SIZE => Some("2"),
            _ => None,
        };
        let set = variables(place);
        assert_eq!(set.len(), 6, "{set:?}");
        set.iter().for_each(|(name, value)| assert_eq!(value.as_deref(), expected(name), "{name}"));
        // The engine does not state the number of ranks, and that of an enclosing job is removed.
        let unknown = variables(Place { size: 0, ..place });
        assert!(unknown.contains(&(ENV_RANKS.to_owned(), None)), "{unknown:?}");
    }
}
