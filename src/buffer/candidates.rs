//! Which addresses are put to the vote, and in what order.
//!
//! The windows were found by running hundreds of executions of plain, sanitized, Java, Node.js and Python
//! programs under four MPIs and asking where nobody ever is (docs/addresses.md has the table). They are only
//! where the search begins: what decides is the vote, and behind the windows stands an exact search.

use crate::wire::MAX_CANDIDATES;

/// Addresses where a free range is likely, best first.
#[derive(Clone, Copy, Debug)]
struct Window {
    start: usize,
    length: usize,
}

const TIB: usize = 1 << 40;
const GIB: usize = 1 << 30;

/// The only range that programs under ThreadSanitizer and MemorySanitizer have to give, below the executables.
pub const SANITIZED: core::ops::Range<usize> = 0x5500_0000_0000..0x5500_0000_0000 + 320 * GIB;

const WINDOWS: [Window; 3] = [
    // Works under every sanitizer. Position-independent executables begin above 0x5555_0000_0000.
    Window { start: SANITIZED.start, length: 300 * GIB },
    // Between the sanitizers' shadows and PMIx 5, which chooses ranges in 0x1fcc.. and 0x3f98...
    Window { start: 0x3000_0000_0000, length: 14 * TIB },
    // Below what `ulimit -s unlimited` gives to the legacy layout, above its 0x145e.. to 0x1554...
    Window { start: 0x1700_0000_0000, length: 7 * TIB },
];

/// The end of user space. Five-level page tables go further only for those who ask for it by a hint.
#[cfg(target_arch = "x86_64")]
pub const TOP: usize = 0x7fff_ffff_f000;
/// The end of user space with 48-bit addresses.
#[cfg(target_arch = "aarch64")]
pub const TOP: usize = 0xffff_ffff_f000;

/// Where the exact search begins: first above the legacy layouts, then from the lowest address that the kernel
/// gives to anybody (`vm.mmap_min_addr`).
pub const SEARCH_FROM: [usize; 2] = [0x1700_0000_0000, 0x1_0000];

/// One ballot: up to [`MAX_CANDIDATES`] addresses, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ballot {
    count: usize,
    list: [usize; MAX_CANDIDATES],
}

impl Ballot {
    /// A ballot of these addresses, the first [`MAX_CANDIDATES`] of them.
    #[must_use]
    pub fn of(addresses: &[usize]) -> Ballot {
        let mut ballot = Ballot { count: 0, list: [0; MAX_CANDIDATES] };
        for &address in addresses.iter().take(MAX_CANDIDATES) {
            ballot.list[ballot.count] = address;
            ballot.count += 1;
        }
        ballot
    }

    /// The addresses.
    #[must_use]
    pub fn as_slice(&self) -> &[usize] {
        &self.list[..self.count]
    }
}

/// The ballot of round `round` (0, 1, ...) for `length` bytes at a multiple of `align` (a power of two);
/// `None` when the windows are used up and the exact search begins.
///
/// Round 0 is the beginning of each window. Each further round is one window, cut into slots, for the case that
/// something small stands at a window's beginning.
#[must_use]
pub fn ballot(round: usize, length: usize, align: usize) -> Option<Ballot> {
    let fits = |window: &Window| length <= window.length && window.start.is_multiple_of(align);
    if round == 0 {
        let mut starts = [0; WINDOWS.len()];
        let mut count = 0;
        for window in WINDOWS.iter().filter(|w| fits(w)) {
            starts[count] = window.start;
            count += 1;
        }
        // None fits at all: an empty ballot, and the search follows.
        return Some(Ballot::of(&starts[..count]));
    }
    let window = WINDOWS.get(round - 1)?;
    let mut slots = [0; MAX_CANDIDATES];
    let mut count = 0;
    if fits(window) {
        let step = ((window.length - length) / MAX_CANDIDATES).max(length).next_multiple_of(align.max(GIB));
        let mut at = window.start + step;
        while count < MAX_CANDIDATES && at + length <= window.start + window.length {
            slots[count] = at;
            count += 1;
            at += step;
        }
    }
    Some(Ballot::of(&slots[..count]))
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
    fn the_sanitizers_window_comes_first_while_it_fits() {
        assert_eq!(ballot(0, 2 * GIB, GIB).unwrap().as_slice()[0], 0x5500_0000_0000);
        assert_eq!(ballot(0, 400 * GIB, GIB).unwrap().as_slice()[0], 0x3000_0000_0000);
        assert_eq!(ballot(0, 100 * TIB, GIB).unwrap().as_slice(), &[] as &[usize]);
    }
}
