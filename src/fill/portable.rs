//! What may live in a buffer and be read by every process that maps it.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::num;
use std::ptr::NonNull;

use rustc_hash::FxBuildHasher;

use crate::error::Result;
use crate::fill::arena::Arena;

/// Types whose bytes mean the same in every process of the job that maps the buffer.
///
/// # Safety
/// A value must not lead, by any safe method, to memory outside the buffer: no reference to it, no box in the
/// ordinary heap, no function pointer, no trait object, no file descriptor. Raw pointers and [`NonNull`] are
/// allowed, since following them is unsafe already; what they point to should lie in the buffer. Programs that
/// share values must be built with the same layout of the type, so in practice from one source by one compiler.
/// A type with members that are not [`PLAIN`](Portable::PLAIN) must say so and forward both methods to them.
/// Types with interior mutability must be safe to share between processes (atomics are).
pub unsafe trait Portable {
    /// Whether values are portable in every state and into every buffer, so that neither method below does anything.
    /// `false` for types with members of which one is not plain; those forward both methods to such members.
    const PLAIN: bool;

    /// Makes a value portable that is so only in certain states: called by [`Arena::place`] before it moves into the
    /// buffer.
    ///
    /// # Errors
    /// [`Error::Full`](crate::Error::Full) when that needs memory.
    fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    /// Whether the value as it is may live in `arena`'s buffer: a container keeps its items in the buffer of its own
    /// arena, which another process need not have mapped.
    fn belongs(&self, arena: &Arena<'_>) -> bool {
        let _ = arena;
        true
    }
}

macro_rules! plain {
    ($($t:ty),*) => { $(
        // SAFETY: numbers and the like, without pointers.
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

// SAFETY: following a raw pointer is unsafe.
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
// SAFETY: no bytes at all.
unsafe impl<T: ?Sized> Portable for PhantomData<T> {
    const PLAIN: bool = true;
}
// SAFETY: reaching inside is unsafe.
unsafe impl<T: Portable> Portable for UnsafeCell<T> {
    const PLAIN: bool = T::PLAIN;

    fn settle(&mut self) -> Result<()> {
        self.get_mut().settle()
    }

    /// What is inside cannot be looked at through a shared reference.
    fn belongs(&self, _: &Arena<'_>) -> bool {
        T::PLAIN
    }
}

/// [`Portable::settle`] for all of `values`.
pub(crate) fn settle_all<'a, T: Portable + 'a>(values: impl IntoIterator<Item = &'a mut T>) -> Result<()> {
    if T::PLAIN { Ok(()) } else { values.into_iter().try_for_each(Portable::settle) }
}

/// [`Portable::belongs`] for all of `values`.
pub(crate) fn all_belong<'a, T: Portable + 'a>(
    values: impl IntoIterator<Item = &'a T>,
    arena: &Arena<'_>,
) -> bool {
    T::PLAIN || values.into_iter().all(|value| value.belongs(arena))
}

macro_rules! several {
    ($t:ty $(, $n:ident)?) => {
        // SAFETY: the values of T, and nothing else.
        unsafe impl<T: Portable $(, const $n: usize)?> Portable for $t {
            const PLAIN: bool = T::PLAIN;

            fn settle(&mut self) -> Result<()> {
                settle_all(self)
            }

            fn belongs(&self, arena: &Arena<'_>) -> bool {
                all_belong(self, arena)
            }
        }
    };
}

several!(Option<T>);
several!([T; N], N);

macro_rules! tuple {
    ($($name:ident),+) => {
        // SAFETY: its members, and nothing else.
        unsafe impl<$($name: Portable),+> Portable for ($($name,)+) {
            const PLAIN: bool = true $(&& $name::PLAIN)+;

            #[allow(non_snake_case)]
            fn settle(&mut self) -> Result<()> {
                let ($($name,)+) = self;
                $($name.settle()?;)+
                Ok(())
            }

            #[allow(non_snake_case)]
            fn belongs(&self, arena: &Arena<'_>) -> bool {
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
