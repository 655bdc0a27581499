//! The engines: the programs that start the processes of a job on its hosts. Each engine has a file
//! of its own.

pub(crate) mod abi;
mod diagnosis;
mod engine;
mod hydra;
mod intelmpi;
mod local;
mod mpich;
mod openmpi;
mod place;
mod plan;
mod release;
mod slurm;

use nix::sys::resource::Resource;

pub(crate) use diagnosis::{Diagnosis, EndedProcess};
pub(crate) use engine::{AgentKind, Engine, LaunchCommand};
pub(crate) use place::Place;
pub(crate) use plan::{AgentProgram, AppContext, Invocation, LaunchPlan, LaunchRequest};
#[cfg(test)]
pub(crate) use release::Release;

/// The engines. `--launcher auto` prefers the first MPI that is found; if there is none, it takes
/// the last engine that needs no MPI. `hostbuf exec` looks for the place of its rank in this order
/// too: an mpirun inside a Slurm allocation leaves the variables of Slurm in the environment, so
/// the MPIs come before Slurm.
pub(crate) const ALL: &[&dyn Engine] =
    &[&local::LocalEngine, &openmpi::OpenMpi, &intelmpi::IntelMpi, &mpich::Mpich, &slurm::Slurm];

/// The launchers without an engine that start ranks: the variable with the number of a rank, and
/// the name.
pub(crate) const OTHER_LAUNCHERS: &[(&str, &str)] = &[
    ("FLUX_TASK_RANK", "Flux"),
    ("PALS_RANKID", "PALS"),
    ("PMIX_RANK", "a launcher with PMIx"),
    ("PMI_RANK", "a launcher with PMI"),
];

/// The names of the launch commands of every MPI.
pub(crate) const COMMON_COMMANDS: &[&str] = &["mpirun", "mpiexec"];

/// Returns the names of the launch commands of the engines that need no mpirun.
pub(crate) fn without_mpirun_commands() -> impl Iterator<Item = &'static str> {
    let engines = ALL.iter().filter(|engine| engine.without_mpirun().is_some());
    engines.flat_map(|engine| engine.commands()).copied()
}

/// Returns the settings of all engines that raise a limit of their ranks.
pub(crate) fn limit_remedies(limit: Resource) -> impl Iterator<Item = &'static str> {
    ALL.iter().filter_map(move |engine| engine.limit_remedy(limit))
}

/// Returns whether this process is inside an allocation, which may have several hosts.
pub(crate) fn is_in_allocation() -> bool {
    ALL.iter().any(|engine| engine.allocated_hosts().is_some())
}

/// Returns the flavours of the agents that are built for one release.
pub(crate) fn flavours() -> impl Iterator<Item = &'static str> {
    ALL.iter().flat_map(|engine| engine.flavours()).copied()
}

/// Returns the binary interfaces of all engines. Several engines may have one.
pub(crate) fn abis() -> impl Iterator<Item = &'static abi::Abi> {
    ALL.iter().flat_map(|engine| engine.abis())
}

/// Returns what is missing if no engine can start ranks on other hosts: a clause for a message.
pub(crate) fn missing_for_other_hosts() -> String {
    let managers = ALL.iter().filter(|engine| engine.allocation_variable().is_some());
    let allocations: String =
        managers.map(|engine| format!(" and no {} allocation", engine.name())).collect();
    format!("no mpirun in PATH{allocations}")
}
