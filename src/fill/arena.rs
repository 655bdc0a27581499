//! A bump allocator in the buffer.

#![allow(unsafe_code, reason = "allocates in the buffer by address")]

use std::alloc::Layout;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator};

use crate::error::{Error, Result};
use crate::fill::arena_id::ArenaId;
use crate::fill::portable::Portable;
use crate::segment::control::Control;
use crate::segment::fill_state::FillState;
use crate::segment::handle::HostBuffer;

/// An allocator over the buffer's memory, valid while the buffer is being filled. It allocates from
/// the beginning of the buffer upwards, or from the end of its last named section: the program
/// fills sections itself. Only the latest block can be freed, or grown in place.
///
/// It is an [`Allocator`], so `Vec`, `Box` and `hashbrown::HashMap` can live in the buffer
/// ([`List`](crate::List), [`Map`](crate::Map)). The handle itself is valid in every process of the
/// job, so containers that store it inside the buffer are as portable as their pointers.
///
/// Threads of the filling process may allocate concurrently. Once filling has ended, every
/// allocation fails.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Arena<'b> {
    start: NonNull<u8>,
    length: u64,
    control: Control<'b>,
    index: u64,
    generation: u64,
    buffer: PhantomData<&'b HostBuffer>,
}

// SAFETY: all fields are plain values; the memory is allocated by an atomic mark, each block once.
unsafe impl Send for Arena<'_> {}
// SAFETY: as above.
unsafe impl Sync for Arena<'_> {}

/// An object in the buffer, created by [`Arena::place`]. Other processes share it, so it gives only
/// `&T`.
#[derive(Debug)]
pub struct Placed<'b, T> {
    at: NonNull<T>,
    buffer: PhantomData<&'b T>,
}

impl<T> Clone for Placed<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Placed<'_, T> {}

impl<'b, T> Placed<'b, T> {
    /// Returns the address, to be stored in other objects of the buffer.
    #[must_use]
    pub fn as_ptr(self) -> NonNull<T> {
        self.at
    }

    /// Returns the object.
    #[must_use]
    pub fn get(self) -> &'b T {
        // SAFETY: place() wrote a T there, nothing moves or frees it, and there is no `&mut` to it.
        unsafe { self.at.as_ref() }
    }
}

impl<T> Deref for Placed<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.get()
    }
}

impl<'b> Arena<'b> {
    pub(crate) fn new(buffer: &'b HostBuffer, generation: u64) -> Arena<'b> {
        Arena {
            start: buffer.as_ptr(),
            length: buffer.len() as u64,
            control: buffer.control(),
            index: buffer.index as u64,
            generation,
            buffer: PhantomData,
        }
    }

    /// Returns the identity of this arena, which differs from those of other buffers and other
    /// fills.
    #[must_use]
    pub fn id(&self) -> ArenaId {
        ArenaId { start: self.start, length: self.length, generation: self.generation }
    }

    /// Returns the number of free bytes.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn left(&self) -> Result<u64> {
        Ok(self.length.saturating_sub(self.control.high_water(self.index as usize)?))
    }

    /// Moves `value` into the buffer. It is never dropped.
    ///
    /// # Errors
    /// [`Error::Full`]; [`Error::Fill`] if filling has ended, or if a container in `value` has its
    /// items in another buffer or was made by an earlier attempt to fill this one.
    pub fn place<T: Portable>(&self, mut value: T) -> Result<Placed<'b, T>> {
        if !T::PLAIN {
            value.settle()?;
            if !value.belongs(self.id()) {
                return Err(Error::Fill {
                    why: "a container in the value has its items in another buffer or in an earlier attempt to fill this one, or a \
                          key of a map contains an empty map"
                        .into(),
                });
            }
        }
        let at = self.take(Layout::new::<T>())?.cast::<T>();
        // SAFETY: take() gave memory for a T that nobody else has.
        unsafe { at.write(value) };
        Ok(Placed { at, buffer: PhantomData })
    }

    /// Allocates memory for `layout`. It is zeroed, unless a process has written there without the
    /// arena.
    ///
    /// # Errors
    /// [`Error::Full`]; [`Error::Fill`] if filling has ended.
    pub fn take(&self, layout: Layout) -> Result<NonNull<u8>> {
        let index = self.index as usize;
        if !self.is_open()? {
            return Err(Error::Fill { why: "the arena is closed: filling has ended".into() });
        }
        let (start, size, align) = (self.start.as_ptr() as u64, layout.size() as u64, layout.align() as u64);
        // Zero bytes need no memory, but a pointer inside the buffer.
        let place = |mark: u64| {
            let at = (start + mark).next_multiple_of(align) - start;
            (at.checked_add(size)? <= self.length).then_some((at, at + size))
        };
        match self.control.move_high_water(index, |mark| place(mark).map(|(_, end)| end))? {
            Some(before) => {
                let (at, _) =
                    place(before).ok_or(Error::Corrupt { word: "the high-water mark", found: before })?;
                // SAFETY: at + size <= length, inside the mapping.
                Ok(unsafe { self.start.add(at as usize) })
            }
            None => Err(Error::Full { requested: size, left: self.left()? }),
        }
    }

    /// Returns whether this fill has allocated the byte at `at`.
    pub(crate) fn has_allocated(&self, at: *const u8) -> Result<bool> {
        let index = self.index as usize;
        let begun = if self.generation > 1 { self.control.retained(index)? } else { 0 };
        let offset = (at as u64).wrapping_sub(self.start.as_ptr() as u64);
        Ok((begun..self.control.high_water(index)?).contains(&offset))
    }

    /// Moves the end of the block at `at` from `old` to `new` bytes behind `at`. Returns false if
    /// another block is the latest.
    fn resize_latest(&self, at: NonNull<u8>, old: usize, new: usize) -> bool {
        if !matches!(self.is_open(), Ok(true)) {
            return false;
        }
        let offset = at.as_ptr() as u64 - self.start.as_ptr() as u64;
        let (old_end, new_end) = (offset + old as u64, offset + new as u64);
        let resize = |mark| (mark == old_end && new_end <= self.length).then_some(new_end);
        matches!(self.control.move_high_water(self.index as usize, resize), Ok(Some(_)))
    }
}

// SAFETY: blocks are disjoint (the mark moves past each atomically), they exist until the buffer is
// unmapped ('b keeps the mapping), and copies of the handle are one allocator.
unsafe impl Allocator for Arena<'_> {
    fn allocate(&self, layout: Layout) -> std::result::Result<NonNull<[u8]>, AllocError> {
        let at = self.take(layout).map_err(|error| {
            tracing::error!(%error, bytes = layout.size(), "allocation in the arena failed");
            AllocError
        })?;
        Ok(NonNull::slice_from_raw_parts(at, layout.size()))
    }

    unsafe fn deallocate(&self, at: NonNull<u8>, layout: Layout) {
        // A freed block is zeroed while it can be allocated again, since take() promises zeroes.
        // SAFETY: the block is the caller's until the mark moves below it.
        unsafe {
            if matches!(self.is_open(), Ok(true)) && self.is_latest(at, layout.size()) {
                at.write_bytes(0, layout.size());
                self.resize_latest(at, layout.size(), 0);
            }
        }
    }

    unsafe fn grow(
        &self,
        at: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> std::result::Result<NonNull<[u8]>, AllocError> {
        if new.align() <= old.align() && self.resize_latest(at, old.size(), new.size()) {
            return Ok(NonNull::slice_from_raw_parts(at, new.size()));
        }
        let block = self.allocate(new)?;
        // SAFETY: both blocks are valid for old.size() bytes, and they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(at.as_ptr(), block.cast().as_ptr(), old.size()) };
        Ok(block)
    }
}

impl Arena<'_> {
    /// Returns whether this arena's fill is in progress.
    fn is_open(&self) -> Result<bool> {
        let index = self.index as usize;
        Ok(self.control.fill(index)? == FillState::Filling
            && self.control.generation(index)? == self.generation)
    }

    fn is_latest(&self, at: NonNull<u8>, size: usize) -> bool {
        let end = at.as_ptr() as u64 - self.start.as_ptr() as u64 + size as u64;
        self.control.high_water(self.index as usize).is_ok_and(|mark| mark == end)
    }
}
