//! Groups of ranks, and their collective operations.

mod error_conversion;
mod first_error;
mod group_facts;
mod hosts;
pub(crate) mod job_error;
mod local;
#[cfg(feature = "mpi")]
mod mpi;
mod polling;
mod signed_words;
mod solo;
#[cfg(test)]
mod tests;

pub use first_error::{FirstError, all_or_none};
pub(crate) use group_facts::{cores_of, random_number};
pub use hosts::{HostIndex, Hosts};
pub use job_error::JobError;
pub use local::Local;
#[cfg(feature = "mpi")]
pub use mpi::Mpi;
pub use polling::poll_with_sleeps;
pub use signed_words::SignedWords;
pub use solo::Solo;

use hostbuf_protocol::failure::cut;
pub use hostbuf_protocol::limits::TEXT_MAX;

use crate::error::Result;

/// The operation by which [`Collective::all_reduce`] combines the words of the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reduce {
    /// The minimum.
    Min,
    /// The maximum.
    Max,
    /// The sum, wrapping on overflow.
    Sum,
    /// The bitwise AND.
    And,
}

impl Reduce {
    /// Combines two words.
    #[must_use]
    pub fn combine(self, a: u64, b: u64) -> u64 {
        match self {
            Reduce::Min => a.min(b),
            Reduce::Max => a.max(b),
            Reduce::Sum => a.wrapping_add(b),
            Reduce::And => a & b,
        }
    }
}

/// A group of ranks that can act together. Every method except [`rank`](Collective::rank),
/// [`size`](Collective::size) and [`progress`](Collective::progress) is collective: all ranks of
/// the group call it, in the same order, with operands of the same length.
///
/// # Errors
/// Every collective method returns [`Error::Collective`](crate::Error::Collective) if the layer
/// below fails or a rank is lost.
pub trait Collective {
    /// Returns this process's rank in the group.
    fn rank(&self) -> usize;

    /// Returns the number of ranks in the group.
    fn size(&self) -> usize;

    /// Gathers `mine` of every rank into `all`, in rank order. `all` is [`size`](Collective::size)
    /// times as long as `mine`.
    fn all_gather(&self, mine: &[u8], all: &mut [u8]) -> Result<()>;

    /// Sends the bytes of `root` to all ranks.
    fn broadcast(&self, bytes: &mut [u8], root: usize) -> Result<()>;

    /// Forms the subgroup of the ranks that pass the same `color`, in the order of their ranks.
    fn split(&self, color: usize) -> Result<Box<dyn Collective>>;

    /// Combines each word over all ranks. All ranks get the same result.
    fn all_reduce(&self, words: &mut [u64], how: Reduce) -> Result<()> {
        let mine: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        let mut all = vec![0; mine.len() * self.size()];
        self.all_gather(&mine, &mut all)?;
        let mut others = all.chunks_exact(8).map(|b| u64::from_ne_bytes(b.try_into().expect("8 bytes")));
        for word in words.iter_mut() {
            *word = others.next().expect("the words of at least one rank");
        }
        for (i, other) in others.enumerate() {
            let word = &mut words[i % mine.len().div_euclid(8)];
            *word = how.combine(*word, other);
        }
        Ok(())
    }

    /// Drives the progress of the layer below while this rank waits outside of it. Local, not
    /// collective.
    fn progress(&self) {}

    /// Returns once all ranks have called it.
    fn barrier(&self) -> Result<()> {
        self.all_reduce(&mut [0], Reduce::Min)
    }
}

/// Returns the first rank's text on all ranks, cut at [`TEXT_MAX`] bytes. Collective.
///
/// # Errors
/// [`Error::Collective`](crate::Error::Collective).
pub(crate) fn text_of_first(group: &dyn Collective, text: &str) -> Result<String> {
    let mut bytes = [0; TEXT_MAX];
    let text = cut(text, bytes.len());
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    group.broadcast(&mut bytes, 0)?;
    let length = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
}
