//! Groups whose ranks are threads of this process.

use std::sync::{Arc, Barrier, Mutex};

use hostbuf_os::process;
use hostbuf_protocol::failure::ErrorClass;

use super::*;
use crate::error::{AttachError, Error, NoSpace};

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
            let threads: Vec<_> = (0..count).map(rank).map(|rank| scope.spawn(|| work(&{ rank }))).collect();
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
        requested: 7,
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
fn all_ranks_get_the_record_of_a_failed_job() {
    let space = || NoSpace {
        host: "h1".into(),
        requested: 7,
        available: 3,
        limit: "the pool".into(),
        remedy: "request less".into(),
    };
    let mut of_rank = JobError::new(ErrorClass::Fill, "the file ends");
    (of_rank.host, of_rank.rank) = (Some("h1".into()), Some(9));
    let of_agent = JobError::new(ErrorClass::Os, "no thread").with_host("h1");
    let unknown = JobError::new(ErrorClass::Lost, "a rank has ended");
    let mut of_here = unknown.clone().with_host(process::host_name());
    of_here.rank = Some(1);
    let of_space = JobError::from(Error::NoSpace(space()));
    for (sent, expected) in
        [(&of_rank, &of_rank), (&of_agent, &of_agent), (&unknown, &of_here), (&of_space, &of_space)]
    {
        let results = Thread::run(3, |group| {
            let failed = || AttachError::JobFailed(sent.clone()).into();
            all_or_none(group, if group.rank == 1 { Err::<(), Error>(failed()) } else { Ok(()) })
        });
        for (rank, result) in results.into_iter().enumerate() {
            let error = result.unwrap_err();
            assert_eq!(&JobError::from(&error), if rank == 1 { sent } else { expected }, "rank {rank}");
            let is_typed = sent.class != ErrorClass::NoSpace || matches!(error, Error::NoSpace(_));
            assert!(rank == 1 || is_typed, "rank {rank}: {error:?}");
        }
    }
}

#[test]
fn an_error_passes_through_two_groups_unchanged() {
    let results = Thread::run(3, |group| {
        let failed = if group.rank == 2 { Err(Error::invalid("size 0")) } else { Ok(()) };
        let there = all_or_none(group, failed);
        all_or_none(group, if group.rank == 2 { Ok(()) } else { there })
    });
    let text = format!("rank 2 on {}: size 0", process::host_name());
    for (rank, result) in results.into_iter().enumerate() {
        assert_eq!(result.unwrap_err().to_string(), text, "rank {rank}");
    }
}

#[test]
fn without_an_error_each_rank_keeps_its_value() {
    let results = Thread::run(3, |group| all_or_none(group, Ok(group.rank)));
    assert_eq!(results.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn each_reduction_combines_two_words() {
    let cases = [(Reduce::Min, 2), (Reduce::Max, 6), (Reduce::Sum, 8), (Reduce::And, 2)];
    for (how, result) in cases {
        assert_eq!(how.combine(6, 2), result);
    }
}
