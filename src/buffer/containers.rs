//! Containers that live in a buffer.

#![allow(unsafe_code)]

use std::hash::{BuildHasher, Hash};

use allocator_api2::boxed::Box;
use allocator_api2::vec::Vec;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::buffer::arena::Arena;
use crate::buffer::portable::{Portable, settle_all};
use crate::error::Result;

/// A vector in a buffer.
pub type List<'b, T> = Vec<T, Arena<'b>>;

/// A hash map in a buffer. The hasher is the same in every process; a randomly seeded one would find nothing in
/// any process but the one that filled the map.
pub type Map<'b, K, V> = HashMap<K, V, FxBuildHasher, Arena<'b>>;

// SAFETY: an arena is an address in the buffer and one in the control page, both agreed.
unsafe impl Portable for Arena<'_> {}

// SAFETY: the block is in the buffer, or there is none and the pointer is never followed.
unsafe impl<T: Portable> Portable for Vec<T, Arena<'_>> {
    const SETTLED: bool = T::SETTLED;

    fn settle(&mut self) -> Result<()> {
        settle_all(self)
    }
}

// SAFETY: the block is in the buffer.
unsafe impl<T: Portable> Portable for Box<T, Arena<'_>> {
    const SETTLED: bool = T::SETTLED;

    fn settle(&mut self) -> Result<()> {
        self.as_mut().settle()
    }
}

// SAFETY: the table is in the buffer once there is one; settle() sees to it, since a map without a table points to
// an empty one inside the executable, which lies elsewhere in every process.
unsafe impl<K: Portable + Eq + Hash, V: Portable, S: Portable + BuildHasher> Portable
    for HashMap<K, V, S, Arena<'_>>
{
    const SETTLED: bool = false;

    fn settle(&mut self) -> Result<()> {
        const { assert!(K::SETTLED, "a key that must be settled cannot be, inside a map") };
        if self.capacity() == 0 {
            self.try_reserve(1).map_err(|_| {
                let left = self.allocator().left().unwrap_or(0);
                crate::Error::Full { asked: size_of::<(K, V)>() as u64, left }
            })?;
        }
        settle_all(self.values_mut())
    }
}
