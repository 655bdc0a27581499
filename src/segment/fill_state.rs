//! The progress of filling a buffer.

/// The progress of filling a buffer. The numbers are words that no flipped byte turns into one
/// another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Fill {
    /// Nobody has begun.
    Empty = 0x5054_4d45,
    /// Somebody fills, or died while filling.
    Filling = 0x4c4c_4946,
    /// It is filled.
    Full = 0x444e_4f44,
    /// It is filled, and nobody can write any more.
    Frozen = 0x5a4f_5246,
}

impl Fill {
    /// Returns the name for people and for JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Fill::Empty => "empty",
            Fill::Filling => "filling",
            Fill::Full => "full",
            Fill::Frozen => "frozen",
        }
    }
}

impl Fill {
    /// Returns the variant of a number that was found in memory, or `None` if it is none.
    pub(super) fn from_number(found: u32) -> Option<Fill> {
        [Fill::Empty, Fill::Filling, Fill::Full, Fill::Frozen].into_iter().find(|&fill| fill as u32 == found)
    }
}
