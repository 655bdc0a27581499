//! Containers that live in a buffer.

#![allow(unsafe_code, reason = "containers of portable parts are declared portable")]

use std::hash::{BuildHasher, Hash};

use allocator_api2::boxed::Box;
use allocator_api2::vec::Vec;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::error::Result;
use crate::fill::arena::Arena;
use crate::fill::arena_id::ArenaId;
use crate::fill::portable::{Portable, all_belong, settle_all};

/// A vector in a buffer.
pub type List<'b, T> = Vec<T, Arena<'b>>;

/// A hash map in a buffer. All processes use the same hasher. With a random seed, only the process
/// that filled the map could find its entries.
pub type Map<'b, K, V> = HashMap<K, V, FxBuildHasher, Arena<'b>>;

// SAFETY: an arena is an address in the buffer and one in the control page, both agreed; place()
// accepts it only in its own buffer.
unsafe impl Portable for Arena<'_> {
    const PLAIN: bool = false;

    fn belongs(&self, arena: ArenaId) -> bool {
        self.id() == arena
    }
}

// SAFETY: the block is in the buffer, or there is none and the pointer is never dereferenced.
unsafe impl<T: Portable> Portable for Vec<T, Arena<'_>> {
    const PLAIN: bool = false;

    fn settle(&mut self) -> Result<()> {
        settle_all(self)
    }

    fn belongs(&self, arena: ArenaId) -> bool {
        self.allocator().belongs(arena) && all_belong(self, arena)
    }
}

// SAFETY: the block is in the buffer.
unsafe impl<T: Portable> Portable for Box<T, Arena<'_>> {
    const PLAIN: bool = false;

    fn settle(&mut self) -> Result<()> {
        self.as_mut().settle()
    }

    fn belongs(&self, arena: ArenaId) -> bool {
        Box::allocator(self).belongs(arena) && self.as_ref().belongs(arena)
    }
}

// SAFETY: the table, if there is one, is in the buffer. A map without a table points to an empty
// one inside the executable, whose address differs between processes: settle() allocates a table,
// and belongs() is false without one.
unsafe impl<K: Portable + Eq + Hash, V: Portable, S: Portable + BuildHasher> Portable
    for HashMap<K, V, S, Arena<'_>>
{
    const PLAIN: bool = false;

    fn settle(&mut self) -> Result<()> {
        if self.capacity() == 0 {
            self.try_reserve(1).map_err(|_| {
                let left = self.allocator().left().unwrap_or(0);
                crate::Error::Full { requested: size_of::<(K, V)>() as u64, left }
            })?;
        }
        settle_all(self.values_mut())
    }

    fn belongs(&self, arena: ArenaId) -> bool {
        self.capacity() > 0
            && self.allocator().belongs(arena)
            && self.hasher().belongs(arena)
            && all_belong(self.keys(), arena)
            && all_belong(self.values(), arena)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Solo;
    use crate::{BufferOptions, Error, HostBuffer};

    fn refused<T: Portable>(arena: Arena<'_>, value: T) -> bool {
        matches!(arena.place(value), Err(Error::Fill { .. }))
    }

    #[test]
    fn a_container_with_items_in_another_buffer_is_not_placed() {
        let here = HostBuffer::allocate(&Solo, BufferOptions::new(1 << 20)).unwrap();
        let there = HostBuffer::allocate(&Solo, BufferOptions::new(1 << 20)).unwrap();
        there
            .initialize(|other| {
                here.initialize(|arena| {
                    let list = |a| List::<u8>::new_in(a);
                    let map = |a| Map::<u8, u8>::with_hasher_in(FxBuildHasher, a);
                    assert!(refused(arena, other));
                    assert!(refused(arena, list(other)));
                    assert!(refused(arena, Box::new_in(1u8, other)));
                    assert!(refused(arena, map(other)));
                    assert!(refused(arena, (1u8, [Some(list(arena)), Some(list(other))])));
                    // Inside containers of the right buffer: as an item, a value, a key, and in a
                    // box.
                    let mut items = List::new_in(arena);
                    items.push(list(other));
                    assert!(refused(arena, items));
                    let mut values = Map::with_hasher_in(FxBuildHasher, arena);
                    values.insert(1, list(other));
                    assert!(refused(arena, values));
                    let mut keys = Map::with_hasher_in(FxBuildHasher, arena);
                    keys.insert(list(other), 1);
                    assert!(refused(arena, keys));
                    assert!(refused(arena, Box::new_in(map(other), arena)));
                    arena.place((list(arena), map(arena), Box::new_in(map(arena), arena)))
                })?;
                other.place(0u8)
            })
            .unwrap();
    }
}
