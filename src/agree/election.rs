//! The election of one address that is free in all participants.
//!
//! A participant holds every candidate for which it votes, so no mapping can occupy the winner
//! between vote and use. The election begins with rounds of ballots over likely addresses, one
//! small reduction each. If they fail, an exact search follows: every participant reports its own
//! lowest hole at or above `x`, the greatest of these addresses is the next `x`, until all
//! participants report `x` itself. No participant has a hole that begins below its own report, so
//! the first `x` that all report is the lowest common hole, and the search fails only if there is
//! none. Each step is one reduction of one word, whatever the number of participants. Each step
//! that does not end the search passes at least one mapping of a participant.

use crate::error::{Error, Result};
use crate::job::{Collective, Reduce};
use hostbuf_os::process;
use hostbuf_protocol::ballot::{Holds, Refusal};
use hostbuf_protocol::candidates::{self, Ballot, SEARCH_FROM};

/// The size of the range that an election is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// Exhaustive: the demands of the election, whose callers name all of them.
pub struct RangeRequest {
    /// The length in bytes.
    pub length: usize,
    /// The alignment of the address in bytes, a power of two.
    pub align: usize,
    /// The first address of the job's own memory, which every participant has mapped, and the
    /// address behind it. Both are 0 if there is none.
    pub own: (usize, usize),
}

impl RangeRequest {
    /// Makes the request of a job that has mapped nothing yet.
    #[must_use]
    pub fn new(length: usize, align: usize) -> RangeRequest {
        RangeRequest { length, align, own: (0, 0) }
    }

    /// Returns the candidates of a ballot that lie beside the job's own memory. A participant would
    /// refuse the others, and name that memory as the cause.
    fn beside_own(&self, ballot: &Ballot) -> Ballot {
        let (start, end) = self.own;
        let is_beside = |at: &usize| at.saturating_add(self.length) <= start || end <= *at;
        let candidates: Vec<usize> = ballot.as_slice().iter().copied().filter(is_beside).collect();
        Ballot::new(&candidates)
    }
}

/// All participants of an election.
pub trait Electorate {
    /// Puts `ballot` to the vote. Returns the candidates that all participants hold afterwards, as
    /// a bit mask.
    ///
    /// # Errors
    /// Fails if a participant is lost.
    fn vote(&mut self, ballot: &Ballot, length: usize) -> Result<u64>;

    /// Returns the greatest of the participants' lowest aligned holes at or above `from`, or `None`
    /// if a participant has no hole.
    ///
    /// # Errors
    /// Fails if a participant is lost.
    fn hole(&mut self, from: usize, request: RangeRequest) -> Result<Option<usize>>;
}

/// The result of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ElectionOutcome {
    /// The address that all participants hold, or `None` if there is no common hole.
    pub address: Option<usize>,
    /// The number of reductions.
    pub rounds: u32,
}

/// The maximum number of steps of one search. A step passes a mapping of a participant, and no
/// participant has more than `vm.max_map_count` (65 530 by default) of them. Participants whose
/// mappings interleave by design could need more steps. For them the search reports that there is
/// no common hole.
const SEARCH_STEPS: u32 = 100_000;

/// Finds an address for the requested range that every participant holds. Deterministic: all
/// callers of one electorate get the same outcome.
///
/// # Errors
/// Returns those of the electorate.
pub fn elect(electorate: &mut impl Electorate, request: RangeRequest) -> Result<ElectionOutcome> {
    let RangeRequest { length, align, .. } = request;
    let _span = tracing::info_span!("agree", length, align).entered();
    let mut rounds = 0;
    let mut round = 0;
    while let Some(ballot) = candidates::ballot(round, length, align) {
        round += 1;
        let ballot = request.beside_own(&ballot);
        if ballot.as_slice().is_empty() {
            continue;
        }
        rounds += 1;
        let common = electorate.vote(&ballot, length)?;
        if let Some(&address) = ballot.as_slice().get(common.trailing_zeros() as usize) {
            return Ok(ElectionOutcome { address: Some(address), rounds });
        }
    }
    for from in SEARCH_FROM {
        let mut at = from.next_multiple_of(align);
        for _ in 0..SEARCH_STEPS {
            rounds += 1;
            let Some(hole) = electorate.hole(at, request)? else { break };
            if hole != at {
                at = hole;
                continue;
            }
            // All participants report a hole here, so the vote makes them hold it. If one has lost
            // it to one of its own threads meanwhile, the search continues behind it.
            rounds += 1;
            if electorate.vote(&Ballot::new(&[at]), length)? & 1 == 1 {
                return Ok(ElectionOutcome { address: Some(at), rounds });
            }
            at += align;
        }
    }
    Ok(ElectionOutcome { address: None, rounds })
}

/// The ranks of a running program, each with its own holds: the electorate of
/// [`HostBuffer::allocate`](crate::HostBuffer::allocate).
pub(crate) struct Ranks<'a> {
    pub(crate) group: &'a dyn Collective,
    pub(crate) holds: Holds,
    /// The first refusal of this rank.
    pub(crate) refusal: Option<String>,
}

impl Electorate for Ranks<'_> {
    fn vote(&mut self, ballot: &Ballot, length: usize) -> Result<u64> {
        let (mask, refusal) = self.holds.vote(ballot, length);
        if self.refusal.is_none() {
            self.refusal = refusal.map(|r| describe(&r, length));
        }
        let mut words = [mask];
        self.group.all_reduce(&mut words, Reduce::And)?;
        Ok(words[0])
    }

    fn hole(&mut self, from: usize, request: RangeRequest) -> Result<Option<usize>> {
        let mut words = [self.holds.hole(from, request.length, request.align).map_or(u64::MAX, |h| h as u64)];
        self.group.all_reduce(&mut words, Reduce::Max)?;
        Ok((words[0] != u64::MAX).then_some(words[0] as usize))
    }
}

/// Describes a refusal to the user: names the mapping, or the limit, that causes it.
#[must_use]
pub fn describe(refusal: &Refusal, length: usize) -> String {
    let (start, end) = refusal.mapping;
    let pid = std::process::id() as i32;
    reason(pid, refusal.address, length, refusal.errno.0, (start, end), refusal.path())
}

/// Describes a refusal of process `pid` as [`describe`] does, from operands that were received as a
/// message.
#[must_use]
pub fn reason(
    pid: i32,
    address: usize,
    length: usize,
    errno: i32,
    mapping: (usize, usize),
    path: &[u8],
) -> String {
    let wanted = match length {
        // The message does not contain the length; all ranks request the same one.
        0 => format!("the buffers' range at {address:#x}"),
        _ => format!("{} at {address:#x}", crate::error::Bytes(length as u64)),
    };
    if mapping.1 > mapping.0 {
        let what =
            if path.is_empty() { "an anonymous mapping".into() } else { String::from_utf8_lossy(path) };
        return format!(
            "{wanted} is taken by {what} at {:#x}-{:#x}. Find the code that maps memory at this fixed address, or request less",
            mapping.0, mapping.1
        );
    }
    let os = std::io::Error::from_raw_os_error(errno);
    match errno {
        libc::ENOMEM => match process::address_space_limit(pid) {
            Some(limit) => format!(
                "{wanted} is refused: the address space of process {pid} is limited to {} (RLIMIT_AS): raise `ulimit -v`, or \
                 request less",
                crate::error::Bytes(limit)
            ),
            None => format!(
                "{wanted} is refused: {os}. The address space is limited (RLIMIT_AS), or process {pid} has too many mappings \
                 (vm.max_map_count): raise `ulimit -v`, or request less"
            ),
        },
        libc::EADDRNOTAVAIL => format!(
            "{wanted} is not granted by the GPU's driver, as other addresses may be: find the code that initialises it before \
             main, or request less"
        ),
        libc::EEXIST => format!(
            "{wanted} is outside the range that this program's sanitizer leaves to applications. Request at most 300 GiB"
        ),
        _ => format!("{wanted} is refused: {os}"),
    }
}

/// Returns the error of an election without a winner. On all ranks it names the lowest member of
/// `group` that has a `refusal` (its rank in the job, and the reason). Collective.
#[must_use]
pub fn disagreement(group: &dyn Collective, refusal: Option<(usize, String)>) -> Error {
    let host = process::host_name;
    let refused = refusal.map_or(Ok(()), |(rank, why)| Err(Error::Disagreed { host: host(), rank, why }));
    crate::job::all_or_none(group, refused).err().unwrap_or_else(|| Error::Disagreed {
        host: host(),
        rank: group.rank(),
        why: "every rank has a free range of this size, but the ranks have none in common: request less"
            .into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostbuf_os::maps::HoleSearch;
    use hostbuf_protocol::candidates::TOP;
    use proptest::prelude::*;

    /// Participants as lists of mappings, ascending and disjoint.
    struct Simulated {
        spaces: Vec<Vec<(usize, usize)>>,
        held: Option<usize>,
    }

    fn lowest(space: &[(usize, usize)], from: usize, length: usize, align: usize) -> Option<usize> {
        let mut search = HoleSearch::new(from, length, align, TOP);
        let _ = space.iter().all(|&(start, end)| search.pass(start, end));
        search.found()
    }

    impl Electorate for Simulated {
        fn vote(&mut self, ballot: &Ballot, length: usize) -> Result<u64> {
            let mask = ballot.as_slice().iter().enumerate().fold(0, |mask, (i, &at)| {
                let free = self.spaces.iter().all(|space| lowest(space, at, length, 1) == Some(at));
                mask | u64::from(free) << i
            });
            self.held = ballot.as_slice().get(mask.trailing_zeros() as usize).copied();
            Ok(mask)
        }

        fn hole(&mut self, from: usize, request: RangeRequest) -> Result<Option<usize>> {
            self.held = None;
            let RangeRequest { length, align, .. } = request;
            let holes = self.spaces.iter().map(|space| lowest(space, from, length, align));
            Ok(holes.collect::<Option<Vec<_>>>().and_then(|h| h.into_iter().max()))
        }
    }

    /// Searches for a hole by the naive model: in one list of all mappings of all participants.
    fn common_hole(
        spaces: &[Vec<(usize, usize)>],
        from: usize,
        length: usize,
        align: usize,
    ) -> Option<usize> {
        let mut all: Vec<_> = spaces.iter().flatten().copied().collect();
        all.sort_unstable();
        lowest(&all, from, length, align)
    }

    const PAGE: usize = 1 << 21;

    fn space(pages: &[(usize, usize)]) -> Vec<(usize, usize)> {
        let mut at = 0;
        let mut mapped = Vec::new();
        for &(gap, length) in pages {
            let start = at + gap * PAGE;
            if start >= TOP {
                break;
            }
            at = (start + length * PAGE).min(TOP);
            mapped.push((start, at));
        }
        mapped
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// Uses random address spaces, dense enough that common holes are rare. The election
        /// succeeds exactly if the naive model finds a hole, and the winner is free in all
        /// participants.
        #[test]
        fn succeeds_exactly_when_a_common_hole_exists(
            layouts in prop::collection::vec(prop::collection::vec((0usize..1 << 20, 1usize..1 << 23), 1..40), 1..12),
            pages in 1usize..1 << 21,
            align in prop::sample::select(vec![PAGE, 1 << 30]),
        ) {
            let spaces: Vec<_> = layouts.iter().map(|l| space(l)).collect();
            let length = pages * PAGE;
            let expected = common_hole(&spaces, SEARCH_FROM[1], length, align);
            let mut electorate = Simulated { spaces, held: None };
            let outcome = elect(&mut electorate, RangeRequest::new(length, align)).unwrap();
            prop_assert_eq!(outcome.address.is_some(), expected.is_some());
            if let Some(address) = outcome.address {
                prop_assert_eq!(electorate.held, Some(address), "everybody holds the winner");
                prop_assert!(address.is_multiple_of(align));
                for space in &electorate.spaces {
                    prop_assert_eq!(lowest(space, address, length, 1), Some(address));
                }
            }
        }
    }

    /// For 128 GiB the first window has two slots, both on the first ballot. Nothing else is
    /// occupied, so the next window decides.
    #[test]
    fn a_second_ballot_has_only_candidates_that_are_not_in_the_first() {
        for length in [16 << 20, 64 << 30, 128 << 30, 256 << 30, 1 << 40] {
            let first = candidates::ballot(0, length, PAGE).expect("the first ballot");
            let spaces = first.as_slice().iter().map(|&at| vec![(at, at + PAGE)]).collect();
            let outcome =
                elect(&mut Simulated { spaces, held: None }, RangeRequest::new(length, PAGE)).unwrap();
            assert_eq!(outcome.rounds, 2, "{length:#x}");
            assert!(!first.as_slice().contains(&outcome.address.unwrap()));
        }
    }

    #[test]
    fn finds_the_only_hole_of_thousands_of_participants() {
        // Participant i leaves only the hole and one page of its own free. All other addresses are
        // mapped.
        let hole = 0x1234_0000_0000;
        let spaces = (0..3000usize)
            .map(|i| {
                let own = 0x2000_0000_0000 + i * PAGE;
                vec![(0, hole), (hole + PAGE, own), (own + PAGE, TOP)]
            })
            .collect();
        let outcome = elect(&mut Simulated { spaces, held: None }, RangeRequest::new(PAGE, PAGE)).unwrap();
        assert_eq!(outcome.address, Some(hole));
        assert!(outcome.rounds < 20, "{} rounds", outcome.rounds);
    }

    #[test]
    fn without_a_common_hole_there_is_no_address() {
        let half = TOP / 2 / PAGE * PAGE;
        let spaces = vec![vec![(0, half)], vec![(half, TOP)]];
        assert_eq!(
            elect(&mut Simulated { spaces, held: None }, RangeRequest::new(PAGE, PAGE)).unwrap().address,
            None
        );
    }
}
