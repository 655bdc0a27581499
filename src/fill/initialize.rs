//! Filling a buffer once.

#![allow(unsafe_code)]

use std::time::Duration;

use tracing::info_span;

use crate::error::{Error, Result};
use crate::fill::arena::{Arena, Placed};
use crate::fill::portable::Portable;
use crate::fill::turn::{FillFrom, Turn, forked};
use crate::fill::type_number::type_number;
use crate::job::{Collective, Hosts, all_or_none};
use crate::segment::fill_state::FillState;
use crate::segment::handle::HostBuffer;
use hostbuf_os::process;

/// How often one who waits looks whether the filler still lives.
const LOOK: Duration = Duration::from_millis(100);

impl HostBuffer {
    /// Fills the buffer by `fill` in one rank of this host, whichever comes first; the others wait.
    /// All get the object that `fill` placed.
    ///
    /// When the filler dies, or its `fill` fails or panics, one of those who wait takes over within
    /// a second, with a zeroed arena and a new generation; `fill` may thus run in several processes
    /// one after another, never in two at a time. (After a `fill` that failed in a process that
    /// lives, the arena is what that one left.)
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
    /// What `fill` returned, in the rank that ran it; [`Error::Fill`] when the object does not lie
    /// in this buffer or the one that is there is of another type, or a child that was forked while
    /// it is filled comes to the end of `fill`; [`Error::Corrupt`].
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
                        .ok_or(Error::Fill { why: "it was filled without a root object".into() });
                }
                FillState::Empty | FillState::Filling => {}
            }
            if let Some(turn) = Turn::begin(self, FillFrom::Fresh)? {
                let placed = {
                    let _span =
                        info_span!("fill", buffer = %self.name(), generation = turn.generation).entered();
                    fill(Arena::of(self, turn.generation))?
                };
                return turn.finish(placed);
            }
            self.control().wait_fill(self.index, state, LOOK);
        }
    }

    /// The object that filled the buffer; `None` while it is not filled.
    ///
    /// # Errors
    /// [`Error::Fill`] when it is of another type; [`Error::Corrupt`].
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
        // SAFETY: not followed before contains() and the alignment have been checked.
        let at = unsafe { self.as_ptr().byte_add(at as usize) }.cast::<T>();
        if !self.contains(at.as_ptr().cast(), size_of::<T>()) || !at.is_aligned() {
            return Err(Error::Corrupt { word: "the root", found: root });
        }
        // SAFETY: a filler of this type placed a T there (the type's number agrees); Portable makes
        // it mean the same here; it is shared and never `&mut` again.
        Ok(Some(unsafe { at.as_ref() }))
    }

    /// Fills the buffer in `group`'s rank 0 and replicates it to the other hosts: one build for the
    /// whole job. Collective. A buffer is filled once: what is needed beside goes behind the same
    /// root, or into another buffer.
    ///
    /// # Errors
    /// As [`initialize`](HostBuffer::initialize) and [`replicate`](HostBuffer::replicate), on all
    /// ranks; [`Error::Fill`] when a host has it filled already, as when a program is started by
    /// another MPI's launcher and each rank believes to be the only one.
    pub fn initialize_job<'b, T: Portable + Sync>(
        &'b self,
        group: &dyn Collective,
        fill: impl FnOnce(Arena<'b>) -> Result<Placed<'b, T>>,
    ) -> Result<&'b T> {
        // Before anybody works for an hour.
        all_or_none(group, self.is_to_be_filled(group))?;
        self.compare(group, &Hosts::of(group)?)?;
        let process = std::process::id();
        let filled = if group.rank() == 0 { self.fill_first(group, fill) } else { Ok(()) };
        if process != std::process::id() {
            // A child that the filler has forked: the group is its parent's.
            return Err(filled.err().unwrap_or_else(forked));
        }
        all_or_none(group, filled)?;
        self.replicate(group, 0)?;
        let root = self.root()?.ok_or(Error::Fill { why: "it was filled without a root object".into() });
        all_or_none(group, root)
    }

    /// As [`initialize`](HostBuffer::initialize), by this `fill` and no other.
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

    /// That somebody else has filled it; and how that can be, where each rank thinks that it is
    /// alone.
    fn filled_already(&self, group: &dyn Collective) -> Error {
        let (name, host, ranks) = (self.name(), process::host_name(), self.segment.launched_ranks());
        let mut why = format!("buffer \"{name}\" on {host} is filled already, and a buffer is filled once");
        if group.size() == 1 && ranks > 1 {
            why += &format!(
                " (the group has one rank, and the launcher has started {ranks} here: is the program's MPI another one than the \
                 launcher's?)"
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
    fn what_a_failed_fill_kept_is_never_given_out_again() {
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
    fn nor_when_another_filler_died_meanwhile() {
        let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(1 << 20)).unwrap();
        let mut list = None;
        let failed = buffer.initialize(|arena| {
            let mut items = crate::List::new_in(arena);
            items.extend(0..100u64);
            list = Some((items.clone(), items));
            Err::<Placed<'_, u64>, _>(Error::invalid("on purpose"))
        });
        assert!(failed.is_err());
        // As a process that took its turn and was killed leaves it.
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
        // A container of an earlier try is not placed, and is whole.
        assert!(refused.unwrap_err().to_string().contains("earlier try"));
        assert!(list.iter().copied().eq(0..100));
    }

    #[test]
    fn initialize_inside_initialize_is_an_error_and_no_hang() {
        let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(1 << 20)).unwrap();
        let outer = buffer.initialize(|arena| {
            let inner = buffer.initialize(|arena| arena.place(1u8)).unwrap_err().to_string();
            assert!(inner.contains("inside"), "{inner}");
            arena.place(2u8)
        });
        assert_eq!(*outer.unwrap(), 2);
    }

    #[test]
    fn an_arena_that_outlives_its_filling_gives_nothing() {
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
