//! The ranks of an MPI communicator. No other file uses rsmpi.

use mpi::collective::SystemOperation;
use mpi::request::{Request, Scope};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives, Root, Source};

use super::{Collective, Reduce, SignedWords, poll_with_sleeps};
use crate::error::Result;

/// An MPI communicator as a [`Collective`].
///
/// rsmpi keeps MPI's default error handler: an error inside MPI aborts the job.
pub struct Mpi {
    world: SimpleCommunicator,
    gentle: bool,
}

impl Mpi {
    /// Duplicates `communicator`, so that messages of the program cannot match those of hostbuf.
    /// Collective over `communicator`.
    pub fn new(communicator: &impl Communicator) -> Mpi {
        Mpi { world: communicator.duplicate(), gentle: false }
    }

    /// Duplicates `communicator` as [`new`](Mpi::new) does, but waits by polling with sleeps
    /// instead of spinning: for a process that must leave the cores to other processes.
    pub fn gentle(communicator: &impl Communicator) -> Mpi {
        Mpi { world: communicator.duplicate(), gentle: true }
    }

    fn wait<'a, D: ?Sized, S: Scope<'a>>(&self, request: Request<'a, D, S>) {
        if !self.gentle {
            request.wait_without_status();
            return;
        }
        let mut pending = Some(request);
        let is_done = || {
            pending = pending.take().and_then(|request| request.test().err());
            Ok::<_, std::convert::Infallible>(pending.is_none())
        };
        let Ok(()) = poll_with_sleeps(is_done);
    }
}

impl Collective for Mpi {
    fn rank(&self) -> usize {
        self.world.rank() as usize
    }

    fn size(&self) -> usize {
        self.world.size() as usize
    }

    fn all_gather(&self, mine: &[u8], all: &mut [u8]) -> Result<()> {
        mpi::request::scope(|scope| self.wait(self.world.immediate_all_gather_into(scope, mine, all)));
        Ok(())
    }

    fn broadcast(&self, bytes: &mut [u8], root: usize) -> Result<()> {
        // The counts of MPI are 32 bits wide.
        for part in bytes.chunks_mut(1 << 30) {
            let root = self.world.process_at_rank(root as i32);
            mpi::request::scope(|scope| self.wait(root.immediate_broadcast_into(scope, part)));
        }
        Ok(())
    }

    fn split(&self, color: usize) -> Result<Box<dyn Collective>> {
        let color = mpi::topology::Color::with_value(color as i32);
        let part = self.world.split_by_color(color).expect("a defined color gives a communicator");
        Ok(Box::new(Mpi { world: part, gentle: self.gentle }))
    }

    fn progress(&self) {
        // Any call makes progress. No message with this tag is ever sent.
        let _ = self.world.any_process().immediate_probe_with_tag(mpi::Tag::default());
    }

    fn all_reduce(&self, words: &mut [u64], how: Reduce) -> Result<()> {
        if matches!(how, Reduce::Min | Reduce::Max) {
            return self.order(words, how);
        }
        let operation =
            if how == Reduce::Sum { SystemOperation::sum() } else { SystemOperation::bitwise_and() };
        let mine = words.to_vec();
        mpi::request::scope(|scope| {
            self.wait(self.world.immediate_all_reduce_into(scope, &mine[..], words, operation));
        });
        Ok(())
    }
}

impl Mpi {
    /// Reduces to the minimum or the maximum.
    fn order(&self, words: &mut [u64], how: Reduce) -> Result<()> {
        let operation = if how == Reduce::Min { SystemOperation::min() } else { SystemOperation::max() };
        let mine = SignedWords::from_unsigned(words);
        let mut all = mine.clone();
        mpi::request::scope(|scope| {
            let (mine, all) = (mine.as_slice(), all.as_mut_slice());
            self.wait(self.world.immediate_all_reduce_into(scope, mine, all, operation));
        });
        all.write_to(words);
        Ok(())
    }
}
