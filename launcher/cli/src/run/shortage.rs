//! The remedy if an engine may have fewer slots than the job has ranks.

use super::plan::RequestedSize;
use crate::engines::LaunchCommand;

/// Describes the shortage of slots and the remedy; returns `None` if there are enough slots or the
/// number of ranks is unknown.
pub(super) fn shortage(command: &LaunchCommand, size: RequestedSize) -> Option<String> {
    let ranks = size.ranks?;
    let (shortage, remedy) = match size.slots {
        Some(slots) if slots >= ranks => return None,
        Some(slots) => {
            let s = if slots == 1 { "" } else { "s" };
            (
                format!("-n {ranks} exceeds the {slots} slot{s} of the hosts"),
                "name more slots (--host h0:4,h1:4)".into(),
            )
        }
        None => command.engine.shortage(ranks),
    };
    let option = command.engine.oversubscribe(&command.release);
    Some(format!("{shortage}: {remedy}, or add --launcher-arg {option}"))
}
