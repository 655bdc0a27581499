//! The engines: the programs that start the processes of a job on its hosts. Each engine has a file
//! of its own.

mod engine;
mod local;
mod mpich;
mod openmpi;
mod place;
mod plan;
mod release;
mod slurm;

pub(crate) use engine::{AgentKind, Engine, LaunchCommand};
pub(crate) use place::Place;
pub(crate) use plan::{AgentProgram, AppContext, Invocation, LaunchPlan, LaunchRequest};
pub(crate) use release::Release;

/// The engines. `--launcher auto` prefers the first MPI that is found; if there is none, it takes
/// the last engine that needs no MPI. `hostbuf exec` looks for the place of its rank in this order
/// too: an mpirun inside a Slurm allocation leaves the variables of Slurm in the environment, so
/// the MPIs come before Slurm.
pub(crate) const ALL: &[&dyn Engine] =
    &[&local::LocalEngine, &openmpi::OpenMpi, &mpich::Mpich, &slurm::Slurm];

/// The names of the launch commands of every MPI.
pub(crate) const COMMON_COMMANDS: &[&str] = &["mpirun", "mpiexec"];
