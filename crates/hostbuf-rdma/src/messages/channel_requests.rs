//! The channels that processes request.

use crate::connect::bootstrap::{Bootstrap, exchange};
use crate::connect::bootstrap_error::{BootstrapError, RecordContent};
use crate::messages::ring::{ChannelIndex, RingLayout};
use crate::messages::tag::Tag;
use crate::peer::PeerId;
use hostbuf::error::{Error, Result};

/// A requested channel: the process at the other end, and the tag.
pub(crate) type Request = (PeerId, Tag);

/// The channels that each process requests, in its order.
pub(crate) struct ChannelRequests(Vec<Vec<Request>>);

impl ChannelRequests {
    /// Exchanges the requests of all processes. All of them call it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the processes have different layouts;
    /// [`BootstrapError::InvalidRecord`] for other bytes than requests; otherwise as
    /// [`Bootstrap::exchange`].
    pub(crate) fn exchange(
        bootstrap: &dyn Bootstrap,
        requested: &[Request],
        layout: RingLayout,
    ) -> Result<ChannelRequests> {
        let records = exchange(bootstrap, &encode(requested, layout))?;
        let mut all = Vec::with_capacity(records.len());
        for (rank, record) in records.iter().enumerate() {
            let Some((requests, other)) = decode(record) else {
                let (peer, expected) = (PeerId(rank), RecordContent::Channels);
                return Err(BootstrapError::InvalidRecord { peer, expected }.into());
            };
            all.push((requests, other));
        }
        let first = all[0].1;
        let shown = |layout: RingLayout| format!("eager = {}, slots = {}", layout.eager, layout.slots);
        if let Some(rank) = all.iter().position(|(_, other)| *other != first) {
            let (one, other) = (shown(all[rank].1), shown(first));
            return Err(Error::invalid(format!(
                "the channel options differ: rank {rank} has {one}, and rank 0 has {other}"
            )));
        }
        Ok(ChannelRequests(all.into_iter().map(|(requests, _)| requests).collect()))
    }

    /// Makes the requests of all processes from their own.
    #[cfg(fuzzing)]
    pub(crate) fn of(all: Vec<Vec<Request>>) -> ChannelRequests {
        ChannelRequests(all)
    }

    /// Returns the index of a channel among those of `peer`.
    pub(crate) fn index(&self, peer: PeerId, channel: Request) -> Option<ChannelIndex> {
        self.0.get(peer.0)?.iter().position(|&other| other == channel).map(ChannelIndex)
    }

    /// Checks that every request has its counterpart.
    ///
    /// # Errors
    /// [`Error::Invalid`] for the first invalid request, the same on all ranks.
    pub(crate) fn check(&self) -> Result<()> {
        for (rank, requested) in self.0.iter().enumerate() {
            let rank = PeerId(rank);
            for (n, &(other, tag)) in requested.iter().enumerate() {
                let invalid = |why: String| {
                    Err(Error::invalid(format!(
                        "invalid channel from rank {rank} to rank {other} with tag {tag}: {why}"
                    )))
                };
                if other == rank {
                    return invalid("a channel needs two ranks".into());
                }
                if other.0 >= self.0.len() {
                    return invalid(format!("there are {} ranks, counted from 0", self.0.len()));
                }
                if requested[..n].contains(&(other, tag)) {
                    return invalid("it is requested twice".into());
                }
                if self.index(other, (rank, tag)).is_none() {
                    return invalid(format!("rank {other} requests no channel to rank {rank} with that tag"));
                }
            }
        }
        Ok(())
    }
}

pub(crate) fn encode(requested: &[Request], layout: RingLayout) -> Vec<u8> {
    let requested = requested.iter().flat_map(|&(peer, tag)| [peer.0 as u64, u64::from(tag.0)]);
    let words = [layout.eager as u64, layout.slots as u64].into_iter().chain(requested);
    words.flat_map(u64::to_le_bytes).collect()
}

/// Decodes the requests and the layout of a process. Returns `None` for other bytes.
pub(crate) fn decode(record: &[u8]) -> Option<(Vec<Request>, RingLayout)> {
    let (words, []) = record.as_chunks::<8>() else { return None };
    let words: Vec<u64> = words.iter().map(|&word| u64::from_le_bytes(word)).collect();
    let (pairs, []) = words.as_chunks::<2>() else { return None };
    let (&[eager, slots], requested) = pairs.split_first()?;
    let requested: Option<Vec<Request>> = requested
        .iter()
        .map(|&[rank, tag]| Some((PeerId(rank as usize), Tag(tag.try_into().ok()?))))
        .collect();
    Some((requested?, RingLayout { eager: eager as usize, slots: slots as usize }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_reverses_encoding() {
        let layout = RingLayout { eager: 8192, slots: 16 };
        for requests in
            [&[][..], &[(PeerId(1), Tag(u32::MAX))], &[(PeerId(7), Tag(0)), (PeerId(usize::MAX), Tag(1))]]
        {
            let record = encode(requests, layout);
            assert_eq!(decode(&record), Some((requests.to_vec(), layout)));
            assert_eq!(decode(&record[1..]), None);
            assert_eq!(decode(&record[8..]), None);
        }
        assert_eq!(decode(&[]), None);
    }

    #[test]
    fn a_channel_without_a_counterpart_is_an_error() {
        let check =
            |all: &[&[Request]]| ChannelRequests(all.iter().map(|one| one.to_vec()).collect()).check();
        assert!(
            check(&[
                &[(PeerId(1), Tag(5)), (PeerId(1), Tag(6))],
                &[(PeerId(0), Tag(6)), (PeerId(0), Tag(5))]
            ])
            .is_ok()
        );
        assert!(check(&[&[], &[]]).is_ok());
        for (all, why) in [
            (
                &[&[(PeerId(1), Tag(5))][..], &[(PeerId(0), Tag(6))]][..],
                "rank 1 requests no channel to rank 0",
            ),
            (&[&[(PeerId(0), Tag(5))], &[]], "needs two ranks"),
            (&[&[(PeerId(2), Tag(5))], &[]], "2 ranks"),
            (&[&[(PeerId(1), Tag(5)), (PeerId(1), Tag(5))], &[(PeerId(0), Tag(5))]], "twice"),
            (&[&[], &[(PeerId(0), Tag(1))]], "rank 0 requests no channel to rank 1"),
        ] {
            let error = check(all).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
