//! Arrays that many threads access at random. They have cache lines of their own, and huge pages if
//! they are large: an access that includes a page table walk takes twice as long.

#![allow(unsafe_code, reason = "shares a mapped array between threads")]

use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;

use crate::memory;

const HUGE: usize = 2 << 20;

/// A fixed number of `T` in memory that is mapped for them: creating and dropping an array never
/// calls the allocator of the program.
pub struct Array<T> {
    at: NonNull<T>,
    count: usize,
    mapping: (*mut libc::c_void, usize),
    owns: PhantomData<T>,
}

// SAFETY: it owns its elements, as a boxed slice does.
unsafe impl<T: Send> Send for Array<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Array<T> {}

/// A type for which all zero bytes are a valid value.
///
/// # Safety
/// The all-zero bit pattern must be a valid value.
pub unsafe trait Zero {}

impl<T> Array<T> {
    /// Creates an array of `count` elements, each by `make`.
    ///
    /// # Errors
    /// `ENOMEM`, as `mmap(2)`.
    pub fn new(count: usize, mut make: impl FnMut(usize) -> T) -> io::Result<Array<T>> {
        let mut array = Array::empty(count)?;
        for i in 0..count {
            // SAFETY: inside the mapping, and the element does not exist yet.
            unsafe { array.at.add(i).write(make(i)) };
            array.count = i + 1;
        }
        Ok(array)
    }

    /// Creates an array of `count` zeroed elements. The kernel allocates their pages at the first
    /// touch.
    ///
    /// # Errors
    /// As [`new`](Array::new).
    pub fn zeroed(count: usize) -> io::Result<Array<T>>
    where
        T: Zero,
    {
        let mut array = Array::empty(count)?;
        // New anonymous pages are zeroed, which is a valid value of each element.
        array.count = count;
        Ok(array)
    }

    /// Makes the array all zero in forked children. Linux before 4.14 does not support this, and
    /// copies the array.
    #[must_use]
    pub fn zero_in_children(self) -> Array<T>
    where
        T: Zero,
    {
        // SAFETY: the advice concerns memory of this array; zero is a valid value of each element.
        unsafe { libc::madvise(self.mapping.0, self.mapping.1, libc::MADV_WIPEONFORK) };
        self
    }

    fn empty(count: usize) -> io::Result<Array<T>> {
        let page = memory::page_size() as usize;
        let room = || io::Error::from_raw_os_error(libc::ENOMEM);
        let size = size_of::<T>().checked_mul(count.max(1)).ok_or_else(room)?;
        // From half a huge page on, a huge page is worth its memory.
        let (size, spare) = match size >= HUGE / 2 {
            true => (size.checked_next_multiple_of(HUGE).ok_or_else(room)?, HUGE),
            false => (size.next_multiple_of(page), 0),
        };
        assert!(align_of::<T>() <= page, "the alignment is at most that of a page");
        let (rw, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), size + spare, rw, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let skipped = if spare > 0 { (start as usize).next_multiple_of(spare) - start as usize } else { 0 };
        // SAFETY: inside the new mapping.
        let at = unsafe { start.byte_add(skipped) };
        if spare > 0 {
            // SAFETY: advice about the new mapping. Without huge pages the kernel uses small ones.
            unsafe { libc::madvise(at, size, libc::MADV_HUGEPAGE) };
        }
        let at = NonNull::new(at.cast::<T>()).ok_or_else(room)?;
        Ok(Array { at, count: 0, mapping: (start, size + spare), owns: PhantomData })
    }
}

impl<T> Deref for Array<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: this many elements exist, and live as long as the array.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.count) }
    }
}

impl<T> Drop for Array<T> {
    fn drop(&mut self) {
        // SAFETY: the array owns the elements, and nothing uses them or the mapping afterwards.
        unsafe {
            std::ptr::slice_from_raw_parts_mut(self.at.as_ptr(), self.count).drop_in_place();
            libc::munmap(self.mapping.0, self.mapping.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[repr(align(64))]
    struct Line([u64; 8]);

    // SAFETY: integers.
    unsafe impl Zero for Line {}

    #[test]
    fn elements_have_their_indexes_and_are_dropped_with_the_array() {
        let counted = Arc::new(());
        for count in [0, 1, 7, 200_000] {
            let array = Array::new(count, |i| (i, counted.clone())).unwrap();
            assert_eq!((array.len(), Arc::strong_count(&counted)), (count, count + 1));
            assert!(array.iter().enumerate().all(|(i, element)| element.0 == i));
            drop(array);
            assert_eq!(Arc::strong_count(&counted), 1);
        }
        let lines = Array::<Line>::zeroed(40_000).unwrap();
        assert!(lines.iter().all(|line| line.0 == [0; 8]));
        assert!((lines.as_ptr() as usize).is_multiple_of(HUGE));
        assert!(Array::<Line>::zeroed(usize::MAX / 64).is_err());
    }

    #[test]
    fn a_panic_during_creation_drops_the_created_elements() {
        let counted = Arc::new(());
        let half = std::panic::catch_unwind(|| {
            Array::new(10, |i| {
                assert!(i < 5, "on purpose");
                counted.clone()
            })
        });
        assert!(half.is_err());
        assert_eq!(Arc::strong_count(&counted), 1);
    }
}
