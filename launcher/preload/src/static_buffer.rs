//! Large buffers in static memory: this object runs on the stack of a program, which may be small
//! (`ulimit -s`).

#![allow(unsafe_code, reason = "a guard gives access to static memory")]

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

/// A buffer in static memory, which one function uses at a time.
pub(crate) struct StaticBuffer<const N: usize> {
    in_use: AtomicBool,
    bytes: UnsafeCell<[u8; N]>,
}

// SAFETY: `in_use` gives the bytes to one guard at a time.
unsafe impl<const N: usize> Sync for StaticBuffer<N> {}

impl<const N: usize> StaticBuffer<N> {
    pub(crate) const fn new() -> StaticBuffer<N> {
        StaticBuffer { in_use: AtomicBool::new(false), bytes: UnsafeCell::new([0; N]) }
    }

    /// Returns a free buffer of `buffers`, with the bytes of its last use.
    ///
    /// # Panics
    /// If all are in use.
    pub(crate) fn one_of(buffers: &'static [StaticBuffer<N>]) -> BufferGuard<N> {
        let is_free = |buffer: &&StaticBuffer<N>| !buffer.in_use.swap(true, Ordering::Acquire);
        BufferGuard(buffers.iter().find(is_free).expect("there are enough buffers"))
    }
}

/// The use of a static buffer, until drop.
pub(crate) struct BufferGuard<const N: usize>(&'static StaticBuffer<N>);

impl<const N: usize> Deref for BufferGuard<N> {
    type Target = [u8; N];

    fn deref(&self) -> &[u8; N] {
        // SAFETY: this is the only guard of the buffer.
        unsafe { &*self.0.bytes.get() }
    }
}

impl<const N: usize> DerefMut for BufferGuard<N> {
    fn deref_mut(&mut self) -> &mut [u8; N] {
        // SAFETY: this is the only guard of the buffer.
        unsafe { &mut *self.0.bytes.get() }
    }
}

impl<const N: usize> Drop for BufferGuard<N> {
    fn drop(&mut self) {
        self.0.in_use.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_free_again_after_its_use() {
        static BUFFERS: [StaticBuffer<4>; 2] = [const { StaticBuffer::new() }; 2];
        for _ in 0..3 {
            let (mut first, mut second) = (StaticBuffer::one_of(&BUFFERS), StaticBuffer::one_of(&BUFFERS));
            (first[0], second[0]) = (1, 2);
            assert_eq!((first[0], second[0]), (1, 2));
        }
    }
}
