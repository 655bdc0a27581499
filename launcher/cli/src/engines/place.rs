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

impl Place {
    /// Checks that the numbers do not contradict each other.
    ///
    /// # Errors
    /// The contradiction, as a clause.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Place { rank, size, local_rank, local_size } = *self;
        if size > 0 && rank >= size {
            return Err(format!("rank {rank} of {size}"));
        }
        if local_rank >= local_size {
            return Err(format!("local rank {local_rank} of {local_size}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_contradict_each_other_are_reported() {
        let check = |rank, size, local_rank, local_size| Place { rank, size, local_rank, local_size }.check();
        assert_eq!(check(3, 4, 1, 2), Ok(()));
        assert_eq!(check(3, 0, 0, 1), Ok(()));
        assert_eq!(check(9, 2, 0, 1).unwrap_err(), "rank 9 of 2");
        assert_eq!(check(1, 2, 1, 1).unwrap_err(), "local rank 1 of 1");
        assert_eq!(check(0, 2, 0, 0).unwrap_err(), "local rank 0 of 0");
    }

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
