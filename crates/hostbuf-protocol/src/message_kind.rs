//! The kinds of messages in frames.

/// The numbers by which frames state the kind of their message.
#[derive(Clone, Copy)]
#[repr(u16)]
pub(crate) enum Kind {
    Hello = 1,
    Ready = 2,
    Ballot = 3,
    Votes = 4,
    Search = 5,
    Hole = 6,
    Agreed = 7,
    Mapped = 8,
    Go = 9,
    Fail = 10,
    Failed = 11,
    Gather = 12,
    Gathered = 13,
    Populated = 14,
    Left = 15,
    Refused = 16,
    GpuReady = 17,
    GpuRange = 18,
    GpuMemory = 19,
    GpuMapped = 20,
}

impl Kind {
    /// Returns the kind with this number.
    pub(crate) fn from_number(number: u16) -> Option<Kind> {
        use Kind::*;
        [
            Hello, Ready, Ballot, Votes, Search, Hole, Agreed, Mapped, Go, Fail, Failed, Gather, Gathered,
            Populated, Left, Refused, GpuReady, GpuRange, GpuMemory, GpuMapped,
        ]
        .into_iter()
        .find(|&kind| kind as u16 == number)
    }
}
