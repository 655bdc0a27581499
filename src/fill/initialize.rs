//! Filling a buffer once.

#![allow(unsafe_code, reason = "the root is found by its offset in the buffer")]

use std::time::Duration;

use tracing::info_span;

use crate::error::{Error, Result};
use crate::fill::arena::{Arena, Placed};
use crate::fill::portable::Portable;
use crate::fill::turn::{FillFrom, FillTurn, forked};
use crate::fill::type_number::type_number;
use crate::job::{Collective, Hosts, all_or_none};
use crate::segment::fill_state::FillState;
use crate::segment::handle::HostBuffer;
use hostbuf_os::process;

/// The interval at which a waiting process checks that the filler is alive.
const LOOK: Duration = Duration::from_millis(100);

impl HostBuffer {
    /// Fills the buffer by `fill` in the first rank of this host that calls this. The other ranks
    /// wait. All ranks get the object that `fill` placed.
    ///
    /// If the filler dies, or its `fill` fails or panics, one of the waiting ranks takes over
    /// within a second, with a zeroed arena and a new generation. `fill` may therefore run in
    /// several processes one after another, but never in two at a time. (If `fill` failed in a
    /// process that is still alive, the next arena begins behind the blocks that this process
    /// allocated.)
    ///
    /// ```
    /// # use hostbuf::{HostBuffer, BufferOptions, job::Solo};
    /// let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(1 << 20))?;
    /// let pi = buffer.initialize(|arena| arena.place(3.14159))?;
    /// assert_eq!(*pi, 3.14159);
    /// # Ok::<(), hostbuf::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of `fill`, in the rank that ran it. [`Error::Fill`] if the object is not in this
    /// buffer, if the existing object has another type, or if a child that was forked during `fill`
    /// reaches its end. [`Error::Corrupt`].
    pub fn initialize<'b, T: Portable + Sync>(
        &'b self,
        fill: impl FnOnce(Arena<'b>) -> Result<Placed<'b, T>>,
    ) -> Result<&'b T> {
        loop {
            let state = self.fill_state()?;
            match state {
                FillState::Filled | FillState::Frozen => {
                    return self
                        .root::<T>()?
                        .ok_or(Error::Fill { why: "the buffer was filled without a root object".into() });
                }
                FillState::Empty | FillState::Filling => {}
            }
            if let Some(turn) = FillTurn::begin(self, FillFrom::Fresh)? {
                let placed = {
                    let _span =
                        info_span!("fill", buffer = %self.name(), generation = turn.generation).entered();
                    fill(Arena::new(self, turn.generation))?
                };
                return turn.finish(placed);
            }
            self.control().wait_fill(self.index, state, LOOK);
        }
    }

    /// Returns the object that filled the buffer, or `None` while the buffer is not filled.
    ///
    /// # Errors
    /// [`Error::Fill`] if the object has another type; [`Error::Corrupt`].
    pub fn root<T: Portable + Sync>(&self) -> Result<Option<&T>> {
        if !matches!(self.fill_state()?, FillState::Filled | FillState::Frozen) {
            return Ok(None);
        }
        let (root, found) = self.control().root(self.index)?;
        let Some(at) = root.checked_sub(1) else { return Ok(None) };
        if found != type_number::<T>() {
            let why =
                format!("the object in buffer \"{}\" is not a {}", self.name(), std::any::type_name::<T>());
            return Err(Error::Fill { why });
        }
        // SAFETY: not dereferenced before contains() and the alignment have been checked.
        let at = unsafe { self.as_ptr().byte_add(at as usize) }.cast::<T>();
        if !self.contains(at.as_ptr().cast(), size_of::<T>()) || !at.is_aligned() {
            return Err(Error::Corrupt { word: "the root", found: root });
        }
        // SAFETY: a filler of this type placed a T there (the number of the type agrees). By
        // Portable it is valid here. It is shared, and there is no `&mut` to it.
        Ok(Some(unsafe { at.as_ref() }))
    }

    /// Fills the buffer in rank 0 of `group` and replicates it to the other hosts: one build for
    /// the whole job. Collective. A buffer is filled once: add further data to the same root
    /// object, or use another buffer.
    ///
    /// # Errors
    /// As [`initialize`](HostBuffer::initialize) and [`replicate`](HostBuffer::replicate), on all
    /// ranks. [`Error::Fill`] if the buffer of a host is filled already. This happens if the
    /// program is started by the launcher of another MPI, so that each rank forms a job of its own.
    pub fn initialize_job<'b, T: Portable + Sync>(
        &'b self,
        group: &dyn Collective,
        fill: impl FnOnce(Arena<'b>) -> Result<Placed<'b, T>>,
    ) -> Result<&'b T> {
        // Checked before a long fill begins.
        all_or_none(group, self.is_to_be_filled(group))?;
        self.compare(group, &Hosts::new(group)?)?;
        let process = std::process::id();
        let filled = if group.rank() == 0 { self.fill_first(group, fill) } else { Ok(()) };
        if process != std::process::id() {
            // This is a child that the filler has forked; the group belongs to its parent.
            return Err(filled.err().unwrap_or_else(forked));
        }
        all_or_none(group, filled)?;
        self.replicate(group, 0)?;
        let root =
            self.root()?.ok_or(Error::Fill { why: "the buffer was filled without a root object".into() });
        all_or_none(group, root)
    }

    /// Fills the buffer as [`initialize`](HostBuffer::initialize) does, but fails if another rank
    /// did.
    fn fill_first<'b, T: Portable + Sync + 'b>(
        &'b self,
        group: &dyn Collective,
        fill: impl FnOnce(Arena<'b>) -> Result<Placed<'b, T>>,
    ) -> Result<()> {
        let mut ran = false;
        self.initialize(|arena| {
            ran = true;
            fill(arena)
        })?;
        if ran { Ok(()) } else { Err(self.filled_already(group)) }
    }

    fn is_to_be_filled(&self, group: &dyn Collective) -> Result<()> {
        match self.fill_state()? {
            FillState::Empty | FillState::Filling => Ok(()),
            FillState::Filled | FillState::Frozen => Err(self.filled_already(group)),
        }
    }

    /// Returns the error of a buffer that is filled already. If each rank believes that it is
    /// alone, the error names the probable cause.
    fn filled_already(&self, group: &dyn Collective) -> Error {
        let (name, host, ranks) = (self.name(), process::host_name(), self.segment.launched_ranks());
        let mut why = format!("buffer \"{name}\" on {host} is filled already, and a buffer is filled once");
        if group.size() == 1 && ranks > 1 {
            why += &format!(
                " (the group has one rank, but the launcher has started {ranks} ranks on this host: the program's MPI may differ from the \
                 launcher's)"
            );
        }
        Error::Fill { why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BufferOptions;
    use crate::job::Solo;

    #[test]
    fn blocks_of_a_failed_fill_are_never_allocated_again() {
        let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(1 << 20)).unwrap();
        let mut kept = None;
        let failed = buffer.initialize(|arena| {
            kept = Some(arena.place(7u64)?);
            Err::<Placed<'_, u64>, _>(Error::invalid("on purpose"))
        });
        assert!(failed.is_err());
        let kept = kept.unwrap();
        let root = buffer.initialize(|arena| arena.place(9u64)).unwrap();
        assert_eq!((*kept, *root, buffer.generation().unwrap()), (7, 9, 2));
        assert!(!std::ptr::eq(kept.get(), root));
    }

    #[test]
    fn blocks_of_a_failed_fill_stay_when_a_later_filler_dies() {
        let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(1 << 20)).unwrap();
        let mut list = None;
        let failed = buffer.initialize(|arena| {
            let mut items = crate::List::new_in(arena);
            items.extend(0..100u64);
            list = Some((items.clone(), items));
            Err::<Placed<'_, u64>, _>(Error::invalid("on purpose"))
        });
        assert!(failed.is_err());
        // The state that a killed filler leaves.
        buffer.control().set_generation(0, 2);
        buffer.control().set_high_water(0, 4096);
        buffer.control().set_fill(0, FillState::Filling);
        let (copy, list) = list.unwrap();
        let refused = buffer.initialize(|arena| {
            let fresh = arena.take(std::alloc::Layout::new::<u64>())?;
            assert!(fresh.as_ptr() as usize >= list.as_ptr_range().end as usize);
            arena.place(copy)?;
            arena.place(0u64)
        });
        // A container of an earlier attempt is not placed, and its items are unchanged.
        assert!(refused.unwrap_err().to_string().contains("earlier attempt"));
        assert!(list.iter().copied().eq(0..100));
    }

    #[test]
    fn initialize_inside_initialize_fails_and_does_not_hang() {
        let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(1 << 20)).unwrap();
        let outer = buffer.initialize(|arena| {
            let inner = buffer.initialize(|arena| arena.place(1u8)).unwrap_err().to_string();
            assert!(inner.contains("inside"), "{inner}");
            arena.place(2u8)
        });
        assert_eq!(*outer.unwrap(), 2);
    }

    #[test]
    fn an_arena_that_outlives_its_fill_allocates_nothing() {
        let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(1 << 20)).unwrap();
        let mut stale = None;
        buffer
            .initialize(|arena| {
                stale = Some(arena);
                arena.place(1u8)
            })
            .unwrap();
        assert!(stale.unwrap().take(std::alloc::Layout::new::<u8>()).is_err());
    }

    #[test]
    fn threads_of_one_process_fill_once() {
        let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(1 << 20)).unwrap();
        let fills = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let root = buffer.initialize(|arena| {
                        fills.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        arena.place(5u64)
                    });
                    assert_eq!(*root.unwrap(), 5);
                });
            }
        });
        assert_eq!(fills.into_inner(), 1);
    }
}
