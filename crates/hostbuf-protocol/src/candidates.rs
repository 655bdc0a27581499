//! The addresses that are put to the vote, and their order.
//!
//! The windows were found by running hundreds of executions of plain, sanitized, Java, Node.js and
//! Python programs under four MPIs and looking for ranges that none of them used (docs/addresses.md
//! has the table). They are only the beginning of the search: the vote decides, and after the
//! windows an exact search follows.

use crate::limits::MAX_CANDIDATES;

/// An address range in which free memory is likely.
#[derive(Clone, Copy, Debug)]
struct Window {
    start: usize,
    length: usize,
}

const TIB: usize = 1 << 40;
const GIB: usize = 1 << 30;

/// The only range that ThreadSanitizer and MemorySanitizer leave free for programs, below the
/// executables.
pub const SANITIZED: core::ops::Range<usize> = 0x5500_0000_0000..0x5500_0000_0000 + 320 * GIB;

const WINDOWS: [Window; 4] = [
    // Works under every sanitizer. Position-independent executables begin above 0x5555_0000_0000.
    Window { start: SANITIZED.start, length: 300 * GIB },
    // Between the shadows of the sanitizers and PMIx 5, which chooses ranges in 0x1fcc.. and
    // 0x3f98...
    Window { start: 0x3000_0000_0000, length: 14 * TIB },
    // Above the mappings under `ulimit -s unlimited` (0x145e.. to 0x1554..), below those of the
    // legacy layout (0x2aaf..).
    Window { start: 0x1700_0000_0000, length: 7 * TIB },
    // Above PMIx 5, below the executables. V8 has used this window, so it comes last.
    Window { start: 0x4100_0000_0000, length: 16 * TIB },
];

/// The end of user space. Five-level page tables extend further only for programs that request this
/// by a hint.
#[cfg(target_arch = "x86_64")]
pub const TOP: usize = 0x7fff_ffff_f000;
/// The end of user space with 48-bit addresses.
#[cfg(target_arch = "aarch64")]
pub const TOP: usize = 0xffff_ffff_f000;

/// The addresses at which the exact search begins: first above the legacy layouts, then the lowest
/// address that the kernel maps (`vm.mmap_min_addr`).
pub const SEARCH_FROM: [usize; 2] = [0x1700_0000_0000, 0x1_0000];

/// One ballot: up to [`MAX_CANDIDATES`] addresses, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ballot {
    count: usize,
    list: [usize; MAX_CANDIDATES],
}

impl Ballot {
    /// Makes a ballot of the first [`MAX_CANDIDATES`] of `addresses`.
    #[must_use]
    pub fn new(addresses: &[usize]) -> Ballot {
        let mut ballot = Ballot { count: 0, list: [0; MAX_CANDIDATES] };
        for &address in addresses.iter().take(MAX_CANDIDATES) {
            ballot.list[ballot.count] = address;
            ballot.count += 1;
        }
        ballot
    }

    /// Returns the addresses.
    #[must_use]
    pub fn as_slice(&self) -> &[usize] {
        &self.list[..self.count]
    }
}

/// The number of candidates on the first ballot: the beginnings of the windows, and slots behind
/// them. One job of a hundred thousand ranks, a few of which have unusual mappings in each window,
/// then still needs no second round.
const FIRST: usize = 9;

/// Returns the ballot of round `round` (0, 1, ...) for `length` bytes at a multiple of `align` (a
/// power of two). Returns `None` after the last window, when the exact search begins.
///
/// Round 0 consists of the beginning of each window, then the first slots behind them in turn. Each
/// further round consists of the slots of one window, without those of round 0. A ballot is empty
/// if no other slot fits.
#[must_use]
pub fn ballot(round: usize, length: usize, align: usize) -> Option<Ballot> {
    let mut list = [0; MAX_CANDIDATES];
    let mut count = 0;
    let mut add = |address: Option<usize>, most: usize| {
        if let Some(address) = address.filter(|_| count < most) {
            list[count] = address;
            count += 1;
        }
    };
    if round == 0 {
        for slot in 0..FIRST {
            WINDOWS.iter().for_each(|window| add(window.slot(slot, length, align), FIRST));
        }
    } else {
        let window = WINDOWS.get(round - 1)?;
        // A participant has refused each address of the first ballot. Putting one to the vote again
        // would cost a round for nothing.
        let refused = ballot(0, length, align)?;
        let slots = (1..=MAX_CANDIDATES).filter_map(|slot| window.slot(slot, length, align));
        slots
            .filter(|address| !refused.as_slice().contains(address))
            .for_each(|address| add(Some(address), MAX_CANDIDATES));
    }
    Some(Ballot { count, list })
}

impl Window {
    /// Returns the address of a slot for `length` bytes. [`MAX_CANDIDATES`] + 1 slots share the
    /// window, fewer if they are long.
    fn slot(&self, index: usize, length: usize, align: usize) -> Option<usize> {
        if length > self.length || !self.start.is_multiple_of(align) {
            return None;
        }
        let step = ((self.length - length) / MAX_CANDIDATES).max(length).next_multiple_of(align.max(GIB));
        let at = self.start + index * step;
        (at + length <= self.start + self.length).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ballots_stay_in_their_windows() {
        for length in [4096, 2 * GIB, 299 * GIB, 300 * GIB, TIB, 7 * TIB, 14 * TIB, 100 * TIB] {
            for align in [2 << 20, GIB] {
                let mut round = 0;
                while let Some(ballot) = ballot(round, length, align) {
                    for &address in ballot.as_slice() {
                        assert!(address.is_multiple_of(align));
                        assert!(
                            WINDOWS
                                .iter()
                                .any(|w| w.start <= address && address + length <= w.start + w.length),
                            "{address:#x} of {length:#x} lies in no window"
                        );
                    }
                    round += 1;
                }
                assert_eq!(round, 1 + WINDOWS.len());
            }
        }
    }

    #[test]
    fn no_address_is_put_to_the_vote_twice() {
        for length in (0..20).map(|bits| (16 << 20) << bits) {
            for align in [2 << 20, GIB] {
                let ballots = (0..).map_while(|round| ballot(round, length, align));
                let mut all: Vec<usize> = ballots.flat_map(|ballot| ballot.as_slice().to_vec()).collect();
                let count = all.len();
                all.sort_unstable();
                all.dedup();
                assert_eq!(all.len(), count, "{length:#x}");
            }
        }
    }

    #[test]
    fn the_sanitizers_window_comes_first_while_it_fits() {
        assert_eq!(ballot(0, 2 * GIB, GIB).unwrap().as_slice()[0], 0x5500_0000_0000);
        assert_eq!(ballot(0, 400 * GIB, GIB).unwrap().as_slice()[0], 0x3000_0000_0000);
        assert_eq!(ballot(0, 100 * TIB, GIB).unwrap().as_slice(), &[] as &[usize]);
    }
}
