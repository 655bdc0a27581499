//! The progress of filling a buffer.

/// The progress of filling a buffer. The numbers are words that no flipped byte turns into one
/// another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FillState {
    /// Nobody has begun.
    Empty = 0x5054_4d45,
    /// Somebody fills, or died while filling.
    Filling = 0x4c4c_4946,
    /// It is filled.
    Filled = 0x444e_4f44,
    /// It is filled, and nobody can write any more.
    Frozen = 0x5a4f_5246,
}

impl FillState {
    /// Returns the name for people and for JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            FillState::Empty => "empty",
            FillState::Filling => "filling",
            FillState::Filled => "filled",
            FillState::Frozen => "frozen",
        }
    }
}

impl FillState {
    /// Returns the variant of a number that was found in memory, or `None` if it is none.
    pub(super) fn from_number(found: u32) -> Option<FillState> {
        [FillState::Empty, FillState::Filling, FillState::Filled, FillState::Frozen]
            .into_iter()
            .find(|&fill| fill as u32 == found)
    }
}
