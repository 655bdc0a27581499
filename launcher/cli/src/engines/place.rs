//! The place of a rank in its job.

/// The largest number of processes of a Linux host (`PID_MAX_LIMIT`). It cannot have more ranks.
const MAX_LOCAL_RANKS: u64 = 1 << 22;

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
    /// both for the host. Returns `None` if one is missing, no number, or beyond any host.
    pub(crate) fn from_variables(
        variable: &dyn Fn(&str) -> Option<String>,
        [rank, size, local_rank, local_size]: [&str; 4],
    ) -> Option<Place> {
        let number = |name: &str| variable(name)?.parse().ok();
        let local = |name: &str| number(name).filter(|number| *number <= MAX_LOCAL_RANKS);
        Some(Place {
            rank: number(rank)?,
            size: number(size).unwrap_or(0),
            local_rank: local(local_rank)?,
            local_size: local(local_size)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beyond_any_host_are_no_place() {
        let place = |local_rank: &str, local_size: &str| {
            let value = |name: &str| match name {
                "LOCAL_RANK" => Some(local_rank.to_owned()),
                "LOCAL_SIZE" => Some(local_size.to_owned()),
                _ => Some("3".to_owned()),
            };
            Place::from_variables(&value, ["RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"])
        };
        assert_eq!(place("1", "2"), Some(Place { rank: 3, size: 3, local_rank: 1, local_size: 2 }));
        for (rank, size) in [("18446744073709551615", "2"), ("0", "1000000000000"), ("x", "2"), ("-1", "2")] {
            assert_eq!(place(rank, size), None, "{rank} of {size}");
        }
    }
}
