//! Who takes part: ranks, hosts, and what they can do together.

mod hosts;
mod local;
#[cfg(feature = "mpi")]
mod mpi;
mod solo;

pub use hosts::Hosts;
pub use local::Local;
#[cfg(feature = "mpi")]
pub use mpi::Mpi;
pub use solo::Solo;

use crate::error::{Error, NoSpace, Result};

/// How [`Collective::all_reduce`] combines the ranks' words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// The least.
    Min,
    /// The greatest.
    Max,
    /// The sum, wrapping.
    Sum,
    /// Bit by bit.
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

/// A group of ranks that can act together. Every method except [`rank`](Collective::rank) and
/// [`size`](Collective::size) is collective: all ranks of the group call it, in the same order,
/// with operands of the same length.
///
/// # Errors
/// Every collective method answers [`Error::Collective`] when the layer below fails or a rank is
/// lost.
pub trait Collective {
    /// This process's rank in the group.
    fn rank(&self) -> usize;

    /// How many ranks the group has.
    fn size(&self) -> usize;

    /// Everybody's `mine`, in rank order, into `all`, which is [`size`](Collective::size) times as
    /// long.
    fn all_gather(&self, mine: &[u8], all: &mut [u8]) -> Result<()>;

    /// `root`'s bytes to everybody.
    fn broadcast(&self, bytes: &mut [u8], root: usize) -> Result<()>;

    /// The subgroup of those who name the same `color`, in the order of their ranks.
    fn split(&self, color: usize) -> Result<Box<dyn Collective>>;

    /// Each word combined over all ranks, the same result everywhere.
    fn all_reduce(&self, words: &mut [u64], how: Reduce) -> Result<()> {
        let mine: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        let mut all = vec![0; mine.len() * self.size()];
        self.all_gather(&mine, &mut all)?;
        let mut others = all.chunks_exact(8).map(|b| u64::from_ne_bytes(b.try_into().expect("8 bytes")));
        for word in words.iter_mut() {
            *word = others.next().expect("one rank's words at least");
        }
        for (i, other) in others.enumerate() {
            let word = &mut words[i % mine.len().div_euclid(8)];
            *word = how.combine(*word, other);
        }
        Ok(())
    }

    /// Lets the layer below go on with what others wait for. Not collective: for a rank that waits
    /// outside of it.
    fn progress(&self) {}

    /// Returns when all have called it.
    fn barrier(&self) -> Result<()> {
        self.all_reduce(&mut [0], Reduce::Min)
    }
}

/// Brings the ranks to one result: every rank's value if all have one, else the error of the lowest
/// rank that failed, on all ranks.
///
/// # Errors
/// This rank's own error when it is the lowest that failed; [`Error::NoSpace`],
/// [`Error::Disagreed`] or [`Error::Elsewhere`] with that rank's operands on the others.
pub fn all_or_none<T>(group: &dyn Collective, result: Result<T>) -> Result<T> {
    let mut lowest = [if result.is_err() { group.rank() as u64 } else { u64::MAX }];
    group.all_reduce(&mut lowest, Reduce::Min)?;
    if lowest[0] == u64::MAX {
        return result;
    }
    let root = lowest[0] as usize;
    let mut packed = [0u8; PACKED];
    if let (true, Err(error)) = (root == group.rank(), &result) {
        packed = pack(error);
    }
    group.broadcast(&mut packed, root)?;
    match result {
        Err(own) if root == group.rank() => Err(own),
        _ => Err(unpack(&packed, root)),
    }
}

/// A text of the first rank's on all ranks, 512 bytes of it at most. Collective.
///
/// # Errors
/// [`Error::Collective`].
pub(crate) fn text_of_first(group: &dyn Collective, text: &str) -> Result<String> {
    let mut bytes = [0; 512];
    let length = text.len().min(bytes.len());
    bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
    group.broadcast(&mut bytes, 0)?;
    let length = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

const PACKED: usize = 1024;

/// The error as text fields with NUL between, for another rank.
fn pack(error: &Error) -> [u8; PACKED] {
    let fields = match error {
        Error::NoSpace(NoSpace { host, asked, available, limit, remedy }) => {
            vec![
                "space".into(),
                host.clone(),
                asked.to_string(),
                available.to_string(),
                limit.clone(),
                remedy.clone(),
            ]
        }
        Error::Disagreed { host, rank, why } => {
            vec!["disagreed".into(), host.clone(), rank.to_string(), why.clone()]
        }
        other => vec!["other".into(), hostbuf_os::process::host_name(), other.to_string()],
    };
    let mut packed = [0; PACKED];
    let text = fields.join("\0");
    let length = text.len().min(PACKED);
    packed[..length].copy_from_slice(&text.as_bytes()[..length]);
    packed
}

fn unpack(packed: &[u8; PACKED], rank: usize) -> Error {
    let text = String::from_utf8_lossy(packed);
    let fields: Vec<&str> = text.split('\0').collect();
    let number = |s: &str| s.parse().unwrap_or(0);
    match fields[..] {
        ["space", host, asked, available, limit, remedy, ..] => Error::NoSpace(NoSpace {
            host: host.into(),
            asked: number(asked),
            available: number(available),
            limit: limit.into(),
            remedy: remedy.into(),
        }),
        ["disagreed", host, rank, why, ..] => {
            Error::Disagreed { host: host.into(), rank: number(rank) as usize, why: why.into() }
        }
        [_, host, message, ..] => Error::Elsewhere { host: host.into(), rank, message: message.into() },
        _ => Error::Elsewhere { host: "?".into(), rank, message: "an unknown error".into() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_their_operands_on_the_way() {
        let space = Error::NoSpace(NoSpace {
            host: "h1".into(),
            asked: 7,
            available: 3,
            limit: "the pool".into(),
            remedy: "ask for less".into(),
        });
        assert_eq!(unpack(&pack(&space), 4).to_string(), space.to_string());
        let other = Error::invalid("size 0");
        let Error::Elsewhere { rank: 4, message, .. } = unpack(&pack(&other), 4) else { panic!() };
        assert_eq!(message, "size 0");
    }

    #[test]
    fn reductions() {
        let cases = [(Reduce::Min, 2), (Reduce::Max, 6), (Reduce::Sum, 8), (Reduce::And, 2)];
        for (how, result) in cases {
            assert_eq!(how.combine(6, 2), result);
        }
    }
}
