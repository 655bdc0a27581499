//! The remedy if an engine may have fewer slots than the job has ranks.

use hostbuf::os::process;

use super::engine::Engine;
use super::plan::Asked;

/// Describes the shortage of slots and the remedy; returns `None` if there are enough slots or the number of ranks is
/// unknown.
pub(super) fn shortage(engine: &Engine, asked: Asked) -> Option<String> {
    let ranks = asked.ranks?;
    let (what, more) = match (asked.slots, engine) {
        (Some(slots), _) if slots >= ranks => return None,
        (Some(slots), _) => {
            let s = if slots == 1 { "" } else { "s" };
            (
                format!("-n {ranks} exceeds the {slots} slot{s} of the hosts"),
                "name more slots (--host h0:4,h1:4)".into(),
            )
        }
        (None, Engine::Slurm { .. }) => (
            format!("-n {ranks} may exceed the tasks of the allocation"),
            "ask salloc or sbatch for more tasks".to_owned(),
        ),
        (None, _) => (
            format!(
                "-n {ranks} may exceed the slots that the engine counts (the cores of this host, or the allocation)"
            ),
            format!("name the slots (--host {}:{ranks})", process::host_name()),
        ),
    };
    let option = match engine {
        Engine::Slurm { .. } => "--overcommit",
        Engine::OpenMpi { major: 5.., .. } => "--map-by --launcher-arg :OVERSUBSCRIBE",
        _ => "--oversubscribe",
    };
    Some(format!("{what}: {more}, or add --launcher-arg {option}"))
}
