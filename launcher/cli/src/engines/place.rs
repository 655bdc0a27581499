//! The place of a rank in its job.

/// The number of a rank in the job and on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) rank: u64,
    /// The number of ranks, or 0 if the engine does not provide it.
    pub(crate) size: u64,
    pub(crate) local_rank: u64,
    pub(crate) local_size: u64,
}

impl Place {
    /// The place of a process that no engine has started.
    pub(crate) const ALONE: Place = Place { rank: 0, size: 1, local_rank: 0, local_size: 1 };

    /// Returns the place from the variables with these names: the rank, the number of ranks, and
    /// both for the host.
    pub(crate) fn from_variables(
        variable: &dyn Fn(&str) -> Option<String>,
        [rank, size, local_rank, local_size]: [&str; 4],
    ) -> Option<Place> {
        let number = |name: &str| variable(name)?.parse().ok();
        Some(Place {
            rank: number(rank)?,
            size: number(size).unwrap_or(0),
            local_rank: number(local_rank)?,
            local_size: number(local_size)?,
        })
    }
}
