//! Signals, by which a host tells another one that bytes have arrived.

use std::fmt;

/// The number of signals of each host.
pub const SIGNALS: usize = 64;

/// The index of a signal of a host, from 0. It is below [`SIGNALS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
// Exhaustive: a number, and nothing else.
pub struct Signal(pub usize);

impl Signal {
    /// An internal signal: a piece of a buffer that is being replicated has arrived.
    pub(crate) const PIECE_ARRIVED: Signal = Signal(SIGNALS);
    /// An internal signal: no more pieces will arrive, since replicating has failed.
    pub(crate) const REPLICATION_FAILED: Signal = Signal(SIGNALS + 1);
    /// The number of signals with the internal ones.
    pub(crate) const ALL: usize = SIGNALS + 2;

    /// Encodes the signal as the immediate data of its notification.
    pub(crate) fn to_immediate(self) -> u32 {
        self.0 as u32
    }

    pub(crate) fn from_immediate(immediate: u32) -> Signal {
        Signal(immediate as usize)
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
