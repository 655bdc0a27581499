//! The channels that the ranks of a group request.

use crate::error::{Error, Result};
use crate::job::Collective;
use crate::rdma::messages::ring::RingLayout;

/// The channels that each rank requests, in its order: the other rank, and the tag.
pub(crate) struct ChannelRequests(Vec<Vec<(usize, u32)>>);

impl ChannelRequests {
    /// Gathers the requests of all ranks. Collective.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the ranks have different layouts; [`Error::Collective`].
    pub(crate) fn gather(
        group: &dyn Collective,
        requested: &[(usize, u32)],
        layout: RingLayout,
    ) -> Result<ChannelRequests> {
        let decode = |bytes: &[u8]| -> Vec<u64> {
            let (words, _) = bytes.as_chunks::<8>();
            words.iter().map(|&word| u64::from_le_bytes(word)).collect()
        };
        let mine: Vec<u8> = [requested.len(), layout.eager, layout.slots]
            .iter()
            .flat_map(|&word| (word as u64).to_le_bytes())
            .collect();
        let mut all = vec![0; mine.len() * group.size()];
        group.all_gather(&mine, &mut all)?;
        let sizes = decode(&all);
        let shown = |one: &[u64]| format!("eager = {}, slots = {}", one[1], one[2]);
        if let Some(rank) = sizes.chunks_exact(3).position(|one| one[1..] != sizes[1..3]) {
            let (one, other) = (shown(&sizes[3 * rank..][..3]), shown(&sizes[..3]));
            return Err(Error::invalid(format!(
                "the channel options differ: rank {rank} has {one}, and rank 0 has {other}"
            )));
        }
        let most = sizes.chunks_exact(3).map(|one| one[0]).max().unwrap_or(0) as usize;
        // Ranks that request fewer channels fill up.
        let none = (u64::MAX, u64::MAX);
        let mine: Vec<u8> = (0..most)
            .map(|n| requested.get(n).map_or(none, |&(rank, tag)| (rank as u64, u64::from(tag))))
            .flat_map(|(rank, tag)| [rank, tag])
            .flat_map(u64::to_le_bytes)
            .collect();
        let mut all = vec![0; mine.len() * group.size()];
        if most > 0 {
            group.all_gather(&mine, &mut all)?;
        }
        let words = decode(&all);
        let of_rank = |rank: usize| {
            let count = sizes[3 * rank] as usize;
            words[2 * most * rank..][..2 * count]
                .chunks_exact(2)
                .map(|two| (two[0] as usize, two[1] as u32))
                .collect()
        };
        Ok(ChannelRequests((0..group.size()).map(of_rank).collect()))
    }

    /// Returns the index of a channel among those of `rank`.
    pub(crate) fn index(&self, rank: usize, channel: (usize, u32)) -> Option<usize> {
        self.0.get(rank)?.iter().position(|&other| other == channel)
    }

    /// Checks that every request has its counterpart.
    ///
    /// # Errors
    /// [`Error::Invalid`] for the first invalid request, the same on all ranks.
    pub(crate) fn check(&self) -> Result<()> {
        for (rank, requested) in self.0.iter().enumerate() {
            for (n, &(other, tag)) in requested.iter().enumerate() {
                let invalid = |why: String| {
                    Err(Error::invalid(format!(
                        "invalid channel from rank {rank} to rank {other} with tag {tag}: {why}"
                    )))
                };
                if other == rank {
                    return invalid("a channel needs two ranks".into());
                }
                if other >= self.0.len() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_without_a_counterpart_is_an_error() {
        let check =
            |all: &[&[(usize, u32)]]| ChannelRequests(all.iter().map(|one| one.to_vec()).collect()).check();
        assert!(check(&[&[(1, 5), (1, 6)], &[(0, 6), (0, 5)]]).is_ok());
        assert!(check(&[&[], &[]]).is_ok());
        for (all, why) in [
            (&[&[(1, 5)][..], &[(0, 6)]][..], "rank 1 requests no channel to rank 0"),
            (&[&[(0, 5)], &[]], "needs two ranks"),
            (&[&[(2, 5)], &[]], "2 ranks"),
            (&[&[(1, 5), (1, 5)], &[(0, 5)]], "twice"),
            (&[&[], &[(0, 1)]], "rank 0 requests no channel to rank 1"),
        ] {
            let error = check(all).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
