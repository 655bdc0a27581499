//! Buffers that are filled before any rank has them.

use super::portable::Portable;
use super::type_number::type_number;
use crate::segment::ControlPage;
use crate::segment::fill_state::FillState;

impl ControlPage {
    /// Declares buffer `index` as filled, with an object of type `T` at `offset` as its root. The
    /// first `high_water` bytes of the buffer are in use.
    ///
    /// # Safety
    /// A `T` lies at that offset of the buffer, aligned, and no rank has the buffer yet.
    #[allow(unsafe_code, reason = "readers of the root dereference it")]
    pub unsafe fn set_filled<T: Portable + Sync>(&self, index: usize, offset: u64, high_water: u64) {
        let control = self.control();
        control.set_generation(index, 1);
        control.set_high_water(index, high_water);
        control.set_root(index, offset + 1, type_number::<T>());
        control.set_fill(index, FillState::Filled);
    }
}
