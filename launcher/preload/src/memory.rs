//! The bodies of the memory functions that the compiler calls by name. The root of the object
//! exports them under these names; here they are ordinary functions, so lints and tests apply.
//!
//! The loops access memory as volatile, or the compiler would replace them by calls of the same
//! functions.

#![allow(unsafe_code, reason = "memory is read and written by address")]

#[cfg(target_arch = "x86_64")]
use core::arch::asm;

/// Copies `n` bytes upwards, as `memcpy`.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `n` bytes. If the ranges overlap, `to` is below
/// `from`.
#[inline]
pub unsafe fn copy(to: *mut u8, from: *const u8, n: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: by the contract of this function; the direction flag is clear by the ABI.
    unsafe {
        asm!("rep movsb", inout("rcx") n => _, inout("rdi") to => _, inout("rsi") from => _, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    for i in 0..n {
        // SAFETY: by the contract of this function.
        unsafe { to.add(i).write_volatile(from.add(i).read_volatile()) };
    }
}

/// Copies `n` bytes between ranges that may overlap, as `memmove`.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `n` bytes.
#[inline]
pub unsafe fn copy_overlapping(to: *mut u8, from: *const u8, n: usize) {
    if (to as usize).wrapping_sub(from as usize) >= n {
        // SAFETY: copying upwards reads each byte before it is overwritten.
        unsafe { copy(to, from, n) };
        return;
    }
    for i in (0..n).rev() {
        // SAFETY: by the contract of this function. Downwards for the same reason.
        unsafe { to.add(i).write_volatile(from.add(i).read_volatile()) };
    }
}

/// Writes `value` to `n` bytes, as `memset`.
///
/// # Safety
/// `to` is valid for writes of `n` bytes.
#[inline]
pub unsafe fn set(to: *mut u8, value: u8, n: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: by the contract of this function.
    unsafe {
        asm!("rep stosb", inout("rcx") n => _, inout("rdi") to => _, in("al") value, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    for i in 0..n {
        // SAFETY: by the contract of this function.
        unsafe { to.add(i).write_volatile(value) };
    }
}

/// Compares `n` bytes, as `memcmp`: the result is negative, zero or positive.
///
/// # Safety
/// `a` and `b` are valid for reads of `n` bytes.
#[inline]
#[must_use]
pub unsafe fn compare(a: *const u8, b: *const u8, n: usize) -> i32 {
    for i in 0..n {
        // SAFETY: by the contract of this function.
        let (x, y) = unsafe { (a.add(i).read_volatile(), b.add(i).read_volatile()) };
        if x != y {
            return i32::from(x) - i32::from(y);
        }
    }
    0
}

/// Returns the number of bytes before the first zero, as `strlen`.
///
/// # Safety
/// `text` is valid for reads up to and including a byte that is zero.
#[inline]
#[must_use]
pub unsafe fn length(text: *const u8) -> usize {
    let mut length = 0;
    // SAFETY: by the contract of this function.
    while unsafe { text.add(length).read_volatile() } != 0 {
        length += 1;
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: [u8; 8] = *b"abcdefgh";

    #[test]
    fn copies_overlap_in_both_directions() {
        for (to, from) in [(0, 3), (3, 0), (2, 2), (0, 7)] {
            for n in 0..=8 - to.max(from) {
                let (mut moved, mut expected) = (TEXT, TEXT);
                expected.copy_within(from..from + n, to);
                let start = moved.as_mut_ptr();
                // SAFETY: both ranges are in the array.
                unsafe { copy_overlapping(start.add(to), start.add(from), n) };
                assert_eq!(moved, expected, "{n} bytes from {from} to {to}");
            }
        }
    }

    #[test]
    fn only_the_requested_bytes_are_written() {
        for n in 0..=8 {
            let (mut copied, mut filled) = ([0; 8], TEXT);
            // SAFETY: at most the length of the arrays.
            unsafe {
                copy(copied.as_mut_ptr(), TEXT.as_ptr(), n);
                set(filled.as_mut_ptr(), 0xff, n);
            }
            assert_eq!((&copied[..n], &copied[n..]), (&TEXT[..n], &[0; 8][n..]));
            assert_eq!((&filled[..n], &filled[n..]), (&[0xff; 8][..n], &TEXT[n..]));
        }
    }

    #[test]
    fn bytes_are_compared_as_unsigned() {
        let order = |a: &[u8; 2], b: &[u8; 2], n| {
            // SAFETY: at most the length of the arrays.
            unsafe { compare(a.as_ptr(), b.as_ptr(), n) }.signum()
        };
        assert_eq!(order(b"ab", b"ab", 2), 0);
        assert_eq!(order(b"ab", b"ac", 1), 0);
        assert_eq!(order(b"ab", b"ac", 2), -1);
        assert_eq!(order(b"\xffa", b"\x01b", 2), 1);
    }

    #[test]
    fn a_length_ends_at_the_first_zero() {
        for (text, expected) in [(c"", 0), (c"a", 1), (c"abc", 3)] {
            // SAFETY: the text ends with a zero.
            assert_eq!(unsafe { length(text.as_ptr().cast()) }, expected);
        }
    }
}
