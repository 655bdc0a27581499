//! One result for all ranks of a group: success, or the error of the lowest rank that failed.

use hostbuf_os::process;
use hostbuf_protocol::failure::ErrorRecord;

use super::{Collective, Reduce};
use crate::error::{Error, Result};
use crate::job_error::JobError;

/// The error of the lowest rank that failed, as all ranks of the group get it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FirstError {
    /// The rank in the group.
    pub rank: usize,
    /// The error, with the host of that rank.
    pub error: JobError,
}

/// Returns the error of the lowest rank that failed, on all ranks, or `None` if no rank failed.
/// `own` is the error of this rank. Collective.
///
/// # Errors
/// [`Error::Collective`].
pub fn first_error(group: &dyn Collective, own: Option<JobError>) -> Result<Option<FirstError>> {
    let mut lowest = [if own.is_some() { group.rank() as u64 } else { u64::MAX }];
    group.all_reduce(&mut lowest, Reduce::Min)?;
    if lowest[0] == u64::MAX {
        return Ok(None);
    }
    let rank = lowest[0] as usize;
    let mut record = [0; ErrorRecord::SIZE];
    if let (true, Some(mut own)) = (rank == group.rank(), own) {
        own.host.get_or_insert_with(process::host_name);
        record = own.encode();
    }
    group.broadcast(&mut record, rank)?;
    let error = JobError::decode(&record).ok_or_else(|| Error::Collective {
        operation: "broadcast",
        why: format!("rank {rank} failed, and sent an error that this rank cannot read"),
    })?;
    Ok(Some(FirstError { rank, error }))
}

/// Gives all ranks one result: each its own value if all ranks have one, otherwise the error of the
/// lowest rank that failed.
///
/// # Errors
/// On the lowest rank that failed: its own error. On the others: [`Error::NoSpace`],
/// [`Error::Disagreed`] or [`Error::Elsewhere`] with the class and the operands of that rank.
pub fn all_or_none<T>(group: &dyn Collective, result: Result<T>) -> Result<T> {
    let own = result.as_ref().err().map(JobError::from);
    match (first_error(group, own)?, result) {
        (None, result) => result,
        (Some(first), Err(own)) if first.rank == group.rank() => Err(own),
        (Some(FirstError { rank, mut error }), _) => {
            error.rank.get_or_insert(rank);
            Err(error.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier, Mutex};

    use super::*;
    use crate::error::NoSpace;
    use hostbuf_protocol::failure::ErrorClass;

    /// One thread of this process as a rank.
    struct Thread {
        rank: usize,
        parts: Arc<Mutex<Vec<Vec<u8>>>>,
        all: Arc<Barrier>,
    }

    impl Thread {
        /// Returns the results of `work` in `count` ranks.
        fn run<T: Send>(count: usize, work: impl Fn(&Thread) -> T + Sync) -> Vec<T> {
            let parts = Arc::new(Mutex::new(vec![Vec::new(); count]));
            let all = Arc::new(Barrier::new(count));
            let rank = |rank| Thread { rank, parts: parts.clone(), all: all.clone() };
            std::thread::scope(|scope| {
                let threads: Vec<_> =
                    (0..count).map(rank).map(|rank| scope.spawn(|| work(&{ rank }))).collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
            })
        }

        fn exchange(&self, mine: &[u8]) -> Vec<Vec<u8>> {
            self.parts.lock().unwrap()[self.rank] = mine.to_vec();
            self.all.wait();
            let all = self.parts.lock().unwrap().clone();
            self.all.wait();
            all
        }
    }

    impl Collective for Thread {
        fn rank(&self) -> usize {
            self.rank
        }

        fn size(&self) -> usize {
            self.parts.lock().unwrap().len()
        }

        fn all_gather(&self, mine: &[u8], all: &mut [u8]) -> Result<()> {
            all.copy_from_slice(&self.exchange(mine).concat());
            Ok(())
        }

        fn broadcast(&self, bytes: &mut [u8], root: usize) -> Result<()> {
            bytes.copy_from_slice(&self.exchange(bytes)[root]);
            Ok(())
        }

        fn split(&self, _: usize) -> Result<Box<dyn Collective>> {
            unreachable!("no test splits")
        }
    }

    #[test]
    fn all_ranks_get_the_error_of_the_lowest_rank_with_its_class() {
        let results = Thread::run(4, |group| {
            all_or_none(
                group,
                match group.rank {
                    1 => Err(Error::Unsupported { what: "--pages 1g".into(), why: "no such pages".into() }),
                    2 => Err(Error::invalid("size 0")),
                    rank => Ok(rank),
                },
            )
        });
        let text = "--pages 1g is not supported here: no such pages";
        for (rank, result) in results.into_iter().enumerate() {
            let error = result.unwrap_err();
            assert_eq!(error.class(), ErrorClass::Unsupported, "rank {rank}");
            match error {
                Error::Unsupported { .. } => assert_eq!(rank, 1),
                Error::Elsewhere { host, rank: 1, message, .. } => {
                    assert_eq!((host, message.as_str()), (process::host_name(), text), "rank {rank}");
                }
                other => panic!("rank {rank}: {other:?}"),
            }
        }
    }

    #[test]
    fn all_ranks_get_the_operands_of_a_lack_of_memory() {
        let space = || NoSpace {
            host: "h1".into(),
            asked: 7,
            available: 3,
            limit: "the pool".into(),
            remedy: "request less".into(),
        };
        let results = Thread::run(3, |group| {
            all_or_none(group, if group.rank == 2 { Err(Error::NoSpace(space())) } else { Ok(()) })
        });
        for result in results {
            assert!(matches!(&result, Err(Error::NoSpace(received)) if *received == space()), "{result:?}");
        }
    }

    #[test]
    fn without_an_error_each_rank_keeps_its_value() {
        let results = Thread::run(3, |group| all_or_none(group, Ok(group.rank)));
        assert_eq!(results.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
