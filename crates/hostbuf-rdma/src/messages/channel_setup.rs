//! Setting channels up: who is joined with whom.

use std::sync::Arc;

use tracing::info_span;

use crate::error::{Error, Result};
use crate::job::{Collective, all_or_none};
use crate::rdma::connect::connections::Parts;
use crate::rdma::connect::endpoint::Endpoint;
use crate::rdma::connect::endpoint_info::Card;
use crate::rdma::messages::channel::{ALIVE, Channel, Shared};
use crate::rdma::messages::channel_state::{End, hear};
use crate::rdma::messages::ring::{Boxes, Layout};
use crate::rdma::options::Options;
use crate::register::{Budget, MonitorMode, RegistrationCache};

/// The most bytes that may be sent at once, and the most places.
const MOST_EAGER: usize = 1 << 20;
const MOST_PLACES: usize = 4096;

/// How channels are made. The same on all ranks, but for the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelOptions {
    /// The device, and the connections.
    pub connection: Options,
    /// Messages of at most so many bytes are copied and sent at once; a longer one stays where it is, is registered by the
    /// cache, and is read from there by who receives it. At most 1 MiB.
    pub eager: usize,
    /// How many messages of a channel may be on their way in each direction; who sends more waits. Places are given
    /// back by halves, so it may be a little more than half of that. 1 to 4096. Each takes the room of an eager message on both
    /// sides, in each direction: with the defaults a channel has 258 KiB on each side, which are pinned.
    pub places: usize,
}

impl Default for ChannelOptions {
    fn default() -> ChannelOptions {
        ChannelOptions { connection: Options::default(), eager: 8192, places: 16 }
    }
}

impl Channel {
    /// Makes this rank's channels: one for each of `wanted`, a rank of `group` and a tag, of which the other rank has to want the
    /// counterpart. Collective; connections are made later, when the first message wants one.
    ///
    /// Each rank that calls it does its own I/O, with a device, a datagram queue pair and a thread of its own; all its channels
    /// share them, and the two queue pairs to a rank. What one side has lost, because the network was broken for a while, is an
    /// error of the channel on both sides, and stays one: the channels are made anew, then. The registration cache takes its budget and its monitor from the
    /// environment.
    ///
    /// # Errors
    /// On all ranks: [`Error::Unsupported`] where one has no RDMA device that is up; [`Error::Invalid`] for a channel that only
    /// one side wants, that is wanted twice, or that leads to the rank itself or to none, and for options that make no sense
    /// or differ.
    pub fn connect(
        group: &dyn Collective,
        wanted: &[(usize, u32)],
        options: ChannelOptions,
    ) -> Result<Vec<Channel>> {
        let _span = info_span!("channels", count = wanted.len()).entered();
        let layout = Layout { eager: options.eager, places: options.places };
        let all = Wanted::gather(group, wanted, layout)?;
        all.check()?;
        let opened = all_or_none(group, open(&options, layout, wanted.len()))?;
        let (parts, boxes, cache) = opened;
        let (at, key) = boxes.address();
        let cards = Card::exchange(group, &parts, key, at)?;
        let own = group.rank();
        let ends: Arc<[End]> = wanted
            .iter()
            .map(|&(rank, tag)| {
                let there = all.position(rank, (own, tag)).expect("it was checked");
                End::new(rank, tag, there, (cards[rank].at, cards[rank].key))
            })
            .collect();
        let endpoint = Arc::new(Endpoint::new(parts, own, &cards, options.connection));
        let boxes = Arc::new(boxes);
        let (told, looked_after, of_them) = (ends.clone(), ends.clone(), boxes.clone());
        // What a rank has sent and does not look after itself, since it is busy otherwise, is looked after all the same: the other
        // side may be waiting for what is lost.
        let look_after = move || {
            for (index, end) in looked_after.iter().enumerate() {
                end.look_after(&of_them, index);
            }
        };
        let listener =
            endpoint.listen(move |number| hear(&told, number), Some((ALIVE, Box::new(look_after))));
        // Nobody asks before all can answer.
        let listener = all_or_none(group, listener)?;
        let shared = Arc::new(Shared { _listener: listener, ends, cache, endpoint, boxes });
        Ok((0..wanted.len()).map(|index| Channel { shared: shared.clone(), index }).collect())
    }
}

type Opened = (Parts, Boxes, RegistrationCache<crate::register::Verbs>);

fn open(options: &ChannelOptions, layout: Layout, channels: usize) -> Result<Opened> {
    if layout.eager > MOST_EAGER || layout.places == 0 || layout.places > MOST_PLACES {
        let what = format!(
            "channels with eager = {} (at most {MOST_EAGER}) and places = {} (1 to {MOST_PLACES})",
            layout.eager, layout.places
        );
        return Err(Error::invalid(what));
    }
    let parts = Parts::open(&options.connection)?;
    let boxes = Boxes::new(&parts.verbs, layout, channels)?;
    let (budget, monitor) = (Budget::from_environment()?, MonitorMode::from_environment()?);
    let cache = RegistrationCache::new(parts.verbs.clone(), budget, monitor)?;
    Ok((parts, boxes, cache))
}

/// The channels that each rank wants, in its order.
struct Wanted(Vec<Vec<(usize, u32)>>);

impl Wanted {
    fn gather(group: &dyn Collective, wanted: &[(usize, u32)], layout: Layout) -> Result<Wanted> {
        let words = |all: &[u8]| -> Vec<u64> {
            all.chunks_exact(8)
                .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
                .collect()
        };
        let mine: Vec<u8> = [wanted.len(), layout.eager, layout.places]
            .iter()
            .flat_map(|&word| (word as u64).to_le_bytes())
            .collect();
        let mut all = vec![0; mine.len() * group.size()];
        group.all_gather(&mine, &mut all)?;
        let sizes = words(&all);
        let shown = |one: &[u64]| format!("eager = {}, places = {}", one[1], one[2]);
        if let Some(rank) = sizes.chunks_exact(3).position(|one| one[1..] != sizes[1..3]) {
            let (one, other) = (shown(&sizes[3 * rank..][..3]), shown(&sizes[..3]));
            return Err(Error::invalid(format!(
                "rank {rank} makes channels with {one}, and rank 0 with {other}"
            )));
        }
        let most = sizes.chunks_exact(3).map(|one| one[0]).max().unwrap_or(0) as usize;
        // Nobody has so many; the others' places are empty.
        let none = (u64::MAX, u64::MAX);
        let mine: Vec<u8> = (0..most)
            .map(|n| wanted.get(n).map_or(none, |&(rank, tag)| (rank as u64, u64::from(tag))))
            .flat_map(|(rank, tag)| [rank, tag])
            .flat_map(u64::to_le_bytes)
            .collect();
        let mut all = vec![0; mine.len() * group.size()];
        if most > 0 {
            group.all_gather(&mine, &mut all)?;
        }
        let words = words(&all);
        let of_rank = |rank: usize| {
            let count = sizes[3 * rank] as usize;
            words[2 * most * rank..][..2 * count]
                .chunks_exact(2)
                .map(|two| (two[0] as usize, two[1] as u32))
                .collect()
        };
        Ok(Wanted((0..group.size()).map(of_rank).collect()))
    }

    fn position(&self, rank: usize, wanted: (usize, u32)) -> Option<usize> {
        self.0.get(rank)?.iter().position(|&other| other == wanted)
    }

    /// # Errors
    /// [`Error::Invalid`] for the first that cannot be; the same on all ranks.
    fn check(&self) -> Result<()> {
        for (rank, wanted) in self.0.iter().enumerate() {
            for (n, &(other, tag)) in wanted.iter().enumerate() {
                let refuse = |why: String| {
                    Err(Error::invalid(format!(
                        "rank {rank} wants a channel to rank {other} with tag {tag}: {why}"
                    )))
                };
                if other == rank {
                    return refuse("that is itself".into());
                }
                if other >= self.0.len() {
                    return refuse(format!("there are {} ranks, counted from 0", self.0.len()));
                }
                if wanted[..n].contains(&(other, tag)) {
                    return refuse("twice".into());
                }
                if self.position(other, (rank, tag)).is_none() {
                    return refuse(format!("rank {other} wants none to rank {rank} with that tag"));
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
    fn channels_have_two_ends() {
        let check = |all: &[&[(usize, u32)]]| Wanted(all.iter().map(|one| one.to_vec()).collect()).check();
        assert!(check(&[&[(1, 5), (1, 6)], &[(0, 6), (0, 5)]]).is_ok());
        assert!(check(&[&[], &[]]).is_ok());
        for (all, why) in [
            (&[&[(1, 5)][..], &[(0, 6)]][..], "rank 1 wants none to rank 0"),
            (&[&[(0, 5)], &[]], "itself"),
            (&[&[(2, 5)], &[]], "2 ranks"),
            (&[&[(1, 5), (1, 5)], &[(0, 5)]], "twice"),
            (&[&[], &[(0, 1)]], "rank 0 wants none to rank 1"),
        ] {
            let error = check(all).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
