//! The remedy if an engine may have fewer slots, or fewer cores, than the job has ranks.

use super::plan::RequestedSize;
use crate::engines::LaunchCommand;

/// Describes the shortage of slots and the remedy. If there are enough slots, but the engine may
/// refuse to bind the ranks, it describes the shortage of cores. Returns `None` in all other cases,
/// and if the number of ranks is unknown.
pub(super) fn shortage(command: &LaunchCommand, size: RequestedSize) -> Option<String> {
    // Without a number of ranks, the engine fills the named slots.
    let ranks = size.ranks.or(size.slots)?;
    let (shortage, remedy) = match size.slots {
        Some(slots) if slots >= ranks => {
            let option = command.engine.option_beyond_cores(&command.release)?;
            return Some(format!("If a host has fewer cores than ranks, add --launcher-arg {option}"));
        }
        Some(slots) => {
            let s = if slots == 1 { "" } else { "s" };
            (
                format!("-n {ranks} exceeds the {slots} slot{s} of the hosts"),
                "name more slots (--host h0:4,h1:4)".into(),
            )
        }
        None => command.engine.shortage(ranks, &command.release),
    };
    let option = command.engine.oversubscribe(&command.release);
    Some(format!("{shortage}: {remedy}, or add --launcher-arg {option}"))
}
