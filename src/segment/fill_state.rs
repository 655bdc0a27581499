//! The progress of filling a buffer.

/// The progress of filling a buffer. The numbers differ in more than one byte, so no flipped byte
/// turns one into another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u32)]
pub enum FillState {
    /// No fill has begun.
    Empty = 0x5054_4d45,
    /// A process fills the buffer, or died while filling it.
    Filling = 0x4c4c_4946,
    /// The buffer is filled.
    Filled = 0x444e_4f44,
    /// The buffer is filled, and the ranks can no longer write to it.
    Frozen = 0x5a4f_5246,
}

impl FillState {
    /// Returns the name for messages and for JSON.
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
    /// Returns the state with the number `found`, or `None` if there is none.
    pub(super) fn from_number(found: u32) -> Option<FillState> {
        [FillState::Empty, FillState::Filling, FillState::Filled, FillState::Frozen]
            .into_iter()
            .find(|&fill| fill as u32 == found)
    }
}
