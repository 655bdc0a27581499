//! Types that may live in a buffer and be read by every process that maps it.

#![allow(unsafe_code, reason = "types are declared to be valid in every process")]

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::num;
use std::ptr::NonNull;

use rustc_hash::FxBuildHasher;

use crate::error::Result;
use crate::fill::arena_id::ArenaId;

/// A type whose bytes are valid in every process of the job that maps the buffer.
///
/// # Safety
/// A value must not lead, by any safe method, to memory outside the buffer: no reference to it, no
/// box in the ordinary heap, no function pointer, no trait object, no file descriptor. Raw pointers
/// and [`NonNull`] are allowed, since dereferencing them is unsafe already; they should point into
/// the buffer. Programs that share values must be built with the same layout of the type, so in
/// practice from one source by one compiler. A type with members that are not
/// [`PLAIN`](Portable::PLAIN) must declare this and forward both methods to them. Types with
/// interior mutability must be safe to share between processes (atomics are).
pub unsafe trait Portable {
    /// True if values are portable in every state and into every buffer, so that neither method
    /// below does anything. A type with a member that is not plain has `false` here and forwards
    /// both methods to that member.
    const PLAIN: bool;

    /// Makes a value portable if it is portable only in certain states.
    /// [`Arena::place`](crate::Arena::place) calls this before it moves the value into the buffer.
    ///
    /// # Errors
    /// [`Error::Full`](crate::Error::Full) if this needs memory and the arena has none.
    fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns whether the value in its present state may live in the buffer of `arena`. A
    /// container stores its items in the buffer of its own arena, which another process may not
    /// have mapped.
    fn belongs(&self, arena: ArenaId) -> bool {
        let _ = arena;
        true
    }
}

macro_rules! plain {
    ($($t:ty),*) => { $(
        // SAFETY: numbers and similar types, without pointers.
        unsafe impl Portable for $t {
            const PLAIN: bool = true;
        }
    )* };
}

plain!(
    (),
    bool,
    char,
    u8,
    u16,
    u32,
    u64,
    u128,
    usize,
    i8,
    i16,
    i32,
    i64,
    i128,
    isize,
    f32,
    f64,
    num::NonZeroU8,
    num::NonZeroU16,
    num::NonZeroU32,
    num::NonZeroU64,
    num::NonZeroUsize,
    std::sync::atomic::AtomicBool,
    std::sync::atomic::AtomicU8,
    std::sync::atomic::AtomicU16,
    std::sync::atomic::AtomicU32,
    std::sync::atomic::AtomicU64,
    std::sync::atomic::AtomicUsize,
    std::sync::atomic::AtomicI32,
    std::sync::atomic::AtomicI64,
    FxBuildHasher
);

// SAFETY: dereferencing a raw pointer is unsafe.
unsafe impl<T: ?Sized> Portable for *const T {
    const PLAIN: bool = true;
}
// SAFETY: as above.
unsafe impl<T: ?Sized> Portable for *mut T {
    const PLAIN: bool = true;
}
// SAFETY: as above.
unsafe impl<T: ?Sized> Portable for NonNull<T> {
    const PLAIN: bool = true;
}
// SAFETY: the type has no bytes.
unsafe impl<T: ?Sized> Portable for PhantomData<T> {
    const PLAIN: bool = true;
}
// SAFETY: access to the content is unsafe.
unsafe impl<T: Portable> Portable for UnsafeCell<T> {
    const PLAIN: bool = T::PLAIN;

    fn settle(&mut self) -> Result<()> {
        self.get_mut().settle()
    }

    // The content cannot be examined through a shared reference.
    fn belongs(&self, _: ArenaId) -> bool {
        T::PLAIN
    }
}

/// Calls [`Portable::settle`] for all of `values`.
pub(crate) fn settle_all<'a, T: Portable + 'a>(values: impl IntoIterator<Item = &'a mut T>) -> Result<()> {
    if T::PLAIN { Ok(()) } else { values.into_iter().try_for_each(Portable::settle) }
}

/// Returns whether [`Portable::belongs`] is true for all of `values`.
pub(crate) fn all_belong<'a, T: Portable + 'a>(
    values: impl IntoIterator<Item = &'a T>,
    arena: ArenaId,
) -> bool {
    T::PLAIN || values.into_iter().all(|value| value.belongs(arena))
}

macro_rules! several {
    ($t:ty $(, $n:ident)?) => {
        // SAFETY: the type consists of values of T only.
        unsafe impl<T: Portable $(, const $n: usize)?> Portable for $t {
            const PLAIN: bool = T::PLAIN;

            fn settle(&mut self) -> Result<()> {
                settle_all(self)
            }

            fn belongs(&self, arena: ArenaId) -> bool {
                all_belong(self, arena)
            }
        }
    };
}

several!(Option<T>);
several!([T; N], N);

macro_rules! tuple {
    ($($name:ident),+) => {
        // SAFETY: the type consists of its members only.
        unsafe impl<$($name: Portable),+> Portable for ($($name,)+) {
            const PLAIN: bool = true $(&& $name::PLAIN)+;

            #[allow(non_snake_case, reason = "the fields are named for their types")]
            fn settle(&mut self) -> Result<()> {
                let ($($name,)+) = self;
                $($name.settle()?;)+
                Ok(())
            }

            #[allow(non_snake_case, reason = "the fields are named for their types")]
            fn belongs(&self, arena: ArenaId) -> bool {
                let ($($name,)+) = self;
                true $(&& $name.belongs(arena))+
            }
        }
    };
}

tuple!(A);
tuple!(A, B);
tuple!(A, B, C);
tuple!(A, B, C, D);
