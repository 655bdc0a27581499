//! An error of one host and the time since which the host knows it.

use std::time::Instant;

use hostbuf::job::Collective;
use hostbuf::{Error, JobError};

/// The number of times that the agents compare for how long they have known their errors. It is
/// odd, so that of two hosts one has the oldest error more often.
const COMPARISONS: usize = 15;

/// An error that the agents of the other hosts do not know yet.
#[derive(Clone, Debug)]
pub(super) struct TimedError {
    pub(super) error: JobError,
    known_since: Instant,
}

impl<E: Into<JobError>> From<E> for TimedError {
    /// Returns an error that is known from now on.
    fn from(error: E) -> TimedError {
        TimedError { error: error.into(), known_since: Instant::now() }
    }
}

impl TimedError {
    /// Returns, on all agents, the error that one of them has known for the longest time, or the
    /// error of a collective operation. Collective; at least one agent has an error.
    ///
    /// An engine that loses a rank ends the ranks of the other hosts within a millisecond or two,
    /// and their agents may report that in the same exchange. The clocks of the hosts may differ,
    /// but most collective operations end at nearly the same time everywhere. So each agent states
    /// several times, right after such an operation, for how long it has known its error, and the
    /// error that was the oldest most often is the first.
    pub(super) fn first(group: &dyn Collective, own: Option<TimedError>) -> JobError {
        let size = group.size();
        let mut times_oldest = vec![0; size];
        let mut ages = vec![0; size * size_of::<u64>()];
        for _ in 0..COMPARISONS {
            let known_for = |own: &TimedError| (own.known_since.elapsed().as_nanos() as u64).max(1);
            let age = own.as_ref().map_or(0, known_for);
            if let Err(error) = group.all_gather(&age.to_ne_bytes(), &mut ages) {
                return error.into();
            }
            times_oldest[oldest(&ages)] += 1;
        }
        let first = lowest_of_highest(times_oldest);
        let own = own.filter(|_| group.rank() == first).map_or(Ok(()), |own| Err(own.error));
        JobError::all_or_first(group, own).err().unwrap_or_else(|| {
            Error::Collective { operation: "agree", why: "an agent stopped without a message".into() }.into()
        })
    }
}

/// Returns the index of the highest of these words.
fn oldest(ages: &[u8]) -> usize {
    lowest_of_highest(ages.chunks_exact(size_of::<u64>()).map(|word| {
        let mut bytes = [0; size_of::<u64>()];
        bytes.copy_from_slice(word);
        u64::from_ne_bytes(bytes)
    }))
}

/// Returns the lowest index of the highest value, or 0 if there is none.
fn lowest_of_highest(values: impl IntoIterator<Item = u64>) -> usize {
    let indexed = values.into_iter().enumerate();
    indexed.max_by_key(|&(index, value)| (value, std::cmp::Reverse(index))).map_or(0, |(index, _)| index)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hostbuf::ErrorClass;

    use super::*;
    use crate::thread_agents::ThreadAgent;

    /// Returns the message that each agent gets, if agent `n` has known an error for `ages[n]`
    /// seconds.
    fn first(ages: &[Option<u64>]) -> Vec<String> {
        ThreadAgent::run(ages.len(), &|_, _, _| {}, |group| {
            let own = ages[group.rank()].map(|age| TimedError {
                error: JobError::new(ErrorClass::Lost, format!("rank {}", group.rank()))
                    .with_host(format!("h{}", group.rank())),
                known_since: Instant::now().checked_sub(Duration::from_secs(age)).unwrap(),
            });
            TimedError::first(group, own).message
        })
    }

    #[test]
    fn all_agents_get_the_error_that_was_known_first() {
        assert_eq!(first(&[Some(1), Some(60), Some(2)]), ["on h1: rank 1", "rank 1", "on h1: rank 1"]);
        assert_eq!(first(&[None, None, Some(0)]), ["on h2: rank 2", "on h2: rank 2", "rank 2"]);
        let none = first(&[None, None]);
        assert!(none.iter().all(|message| message.contains("stopped without a message")), "{none:?}");
    }
}
