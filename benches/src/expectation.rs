//! The rounds that an election is expected to take where conflicts are planted: computed from
//! everything that a simulated job can draw, and not from elections. The figures of
//! [`crate::agreement`] stand beside it.

use hostbuf_protocol::candidates;

use crate::programs::{GIB, PROGRAMS, ProgramKind, TIB, TOP};

/// The planted conflicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planted {
    /// One on each address of the first ballot.
    First,
    /// So many pages at random addresses.
    Anywhere(u32),
}

/// Returns the shares of the jobs that take 1, 2, ... rounds of ballots. The rest goes on to the
/// exact search.
pub(crate) fn shares(participants: usize, planted: Planted) -> Vec<f64> {
    let mut shares = vec![0.0; 5];
    for (program, percent) in PROGRAMS {
        let sanitized = matches!(program, ProgramKind::Asan | ProgramKind::Tsan | ProgramKind::Msan);
        let vast = if sanitized { 0.0 } else { 0.05 };
        let lengths = (0..15).map(|bits| ((16 << 20) << bits, (1.0 - vast) / 15.0));
        let lengths = lengths.chain((0..4).map(|bits| ((512 * GIB) << bits, vast / 4.0)));
        for (length, of_length) in lengths {
            let whole = if length >= GIB { 0.2 } else { 0.0 };
            for (align, of_align) in [(GIB, whole), (2 << 20, 1.0 - whole)] {
                for (stray, of_stray) in [(true, 0.1), (false, 0.9)] {
                    let free = |at: usize| free(program, stray, at as u64, length, participants);
                    let share = percent as f64 / 100.0 * of_length * of_align * of_stray;
                    add(&mut shares, share, length, align, planted, free);
                }
            }
        }
    }
    shares
}

/// Adds the jobs of one kind, which are a `share` of all.
fn add(
    shares: &mut [f64],
    share: f64,
    length: u64,
    align: u64,
    planted: Planted,
    free: impl Fn(usize) -> f64,
) {
    let ballots = (0..).map_while(|round| candidates::ballot(round, length as usize, align as usize));
    let ballots = ballots.filter(|ballot| !ballot.as_slice().is_empty());
    let mut left = share;
    for (round, ballot) in ballots.enumerate() {
        let mut lost = 1.0;
        for &at in ballot.as_slice() {
            let spared = match planted {
                // No address is on two ballots, and no two slots of a window overlap.
                Planted::First => f64::from(u8::from(round > 0)),
                Planted::Anywhere(pages) => (-f64::from(pages) * length as f64 / TOP as f64).exp(),
            };
            lost *= 1.0 - spared * free(at);
        }
        shares[round] += left * (1.0 - lost);
        left *= lost;
    }
}

/// Returns the probability that no participant has one of its own mappings in a range. The ranges
/// of the other programs and of PMIx lie outside the windows.
fn free(program: ProgramKind, stray: bool, at: u64, length: u64, participants: usize) -> f64 {
    let meets = |start: u64, end: u64| at < end && at + length > start;
    let participants = participants as f64;
    match program {
        ProgramKind::Tsan if meets(0x80_0000_0000, 0x5500_0000_0000) => return 0.0,
        ProgramKind::Msan if meets(0x100_0000_0000, 0x5100_0000_0000) => return 0.0,
        _ => {}
    }
    // A mapping of `size` bytes at a random place of `room` meets the range with the probability
    // (length + size) / room.
    let mut met = 0.0;
    if stray {
        met += 0.01 * participants * (length + GIB) as f64 / TOP as f64;
    }
    if program == ProgramKind::Node && at < 64 * TIB {
        met += 10.5 * participants * (length + (256 << 20)) as f64 / (64 * TIB) as f64;
    }
    (-met).exp()
}

/// Returns the shares for people.
pub(crate) fn text(participants: usize, planted: Planted) -> String {
    let shares = shares(participants, planted);
    let rest = 1.0 - shares.iter().sum::<f64>();
    let each = shares.iter().enumerate().filter(|(_, share)| **share >= 0.000_05);
    let each = each.map(|(at, share)| format!("{} in {:.2} %", at + 1, share * 100.0));
    let each = each.collect::<Vec<_>>().join(", ");
    format!("computed: rounds {each}, and the exact search in {:.2} %", rest * 100.0)
}
