//! Groups of ranks, and their collective operations.

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

/// The operation by which [`Collective::all_reduce`] combines the words of the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
/// Every collective method returns [`Error::Collective`] if the layer below fails or a rank is
/// lost.
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

/// Gives all ranks one result: each its own value if all ranks have one, otherwise the error of the
/// lowest rank that failed.
///
/// # Errors
/// On the lowest rank that failed: its own error. On the others: [`Error::NoSpace`],
/// [`Error::Disagreed`] or [`Error::Elsewhere`] with the operands of that rank.
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

/// Returns the first rank's text on all ranks, cut at 512 bytes. Collective.
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

/// Encodes the error for another rank, as text fields separated by NUL.
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
    fn errors_keep_their_operands_when_sent_to_another_rank() {
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
    fn each_reduction_combines_two_words() {
        let cases = [(Reduce::Min, 2), (Reduce::Max, 6), (Reduce::Sum, 8), (Reduce::And, 2)];
        for (how, result) in cases {
            assert_eq!(how.combine(6, 2), result);
        }
    }
}
