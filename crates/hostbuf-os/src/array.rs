//! Arrays that are looked into at random, by many threads: on cache lines of their own, and on huge
//! pages when they are large, since a look that also has to walk the page tables takes twice as
//! long.

#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;

use crate::memory;

const HUGE: usize = 2 << 20;

/// A fixed number of `T`, straight from the kernel: making and dropping one never enters the
/// allocator of the program.
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

/// Types for which a row of zero bytes is a value.
///
/// # Safety
/// It is.
pub unsafe trait Zero {}

impl<T> Array<T> {
    /// So many, each made by `make`.
    ///
    /// # Errors
    /// `ENOMEM`, as `mmap(2)`.
    pub fn new(count: usize, mut make: impl FnMut(usize) -> T) -> io::Result<Array<T>> {
        let mut array = Array::empty(count)?;
        for i in 0..count {
            // SAFETY: inside the mapping, and nothing is there yet.
            unsafe { array.at.add(i).write(make(i)) };
            array.count = i + 1;
        }
        Ok(array)
    }

    /// So many, all zero; the kernel gives their pages when they are touched first.
    ///
    /// # Errors
    /// As [`new`](Array::new).
    pub fn zeroed(count: usize) -> io::Result<Array<T>>
    where
        T: Zero,
    {
        let mut array = Array::empty(count)?;
        // New anonymous pages are zero, which is a value of each.
        array.count = count;
        Ok(array)
    }

    /// In a forked child it is all zero, whatever the parent had put there. Linux before 4.14
    /// cannot do that, and copies it.
    #[must_use]
    pub fn zero_in_children(self) -> Array<T>
    where
        T: Zero,
    {
        // SAFETY: advice about memory that is this array's own; zero is a value of each element.
        unsafe { libc::madvise(self.mapping.0, self.mapping.1, libc::MADV_WIPEONFORK) };
        self
    }

    fn empty(count: usize) -> io::Result<Array<T>> {
        let page = memory::page_size() as usize;
        let room = || io::Error::from_raw_os_error(libc::ENOMEM);
        let size = size_of::<T>().checked_mul(count.max(1)).ok_or_else(room)?;
        // From half a huge page on one is not wasted.
        let (size, spare) = match size >= HUGE / 2 {
            true => (size.checked_next_multiple_of(HUGE).ok_or_else(room)?, HUGE),
            false => (size.next_multiple_of(page), 0),
        };
        assert!(align_of::<T>() <= page, "a page is the most that is asked for");
        let (rw, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory at an address of the kernel's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), size + spare, rw, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let skipped = if spare > 0 { (start as usize).next_multiple_of(spare) - start as usize } else { 0 };
        // SAFETY: inside what was mapped just now.
        let at = unsafe { start.byte_add(skipped) };
        if spare > 0 {
            // SAFETY: advice about it; where there are no huge pages small ones do.
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
        // SAFETY: so many have been made, and live as long as this.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.count) }
    }
}

impl<T> Drop for Array<T> {
    fn drop(&mut self) {
        // SAFETY: they are this array's, and nobody sees them again; then nothing is left in the
        // mapping.
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

    // SAFETY: numbers.
    unsafe impl Zero for Line {}

    #[test]
    fn elements_are_where_they_should_be_and_end_with_it() {
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
    fn a_panic_half_way_leaves_nothing() {
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
