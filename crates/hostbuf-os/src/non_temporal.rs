//! Copies into memory that is not accessed soon.

#![allow(unsafe_code, reason = "non-temporal stores are intrinsics")]

/// Copies bytes by non-temporal stores, which do not read the cache lines of the destination from
/// memory first. Other threads see the bytes after a [`fence`] of this thread.
///
/// # Panics
/// If the lengths differ.
#[cfg(target_arch = "x86_64")]
#[doc(alias = "_mm_stream_si128")]
pub fn copy(into: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};

    assert_eq!(into.len(), from.len());
    // SAFETY: any bytes are valid vectors and valid bytes.
    let (before, vectors, after) = unsafe { into.align_to_mut::<__m128i>() };
    let (first, rest) = from.split_at(before.len());
    before.copy_from_slice(first);
    let (middle, last) = rest.split_at(size_of_val(vectors));
    for (place, bytes) in vectors.iter_mut().zip(middle.chunks_exact(size_of::<__m128i>())) {
        // SAFETY: both are as long as a vector, and the destination is aligned.
        unsafe { _mm_stream_si128(place, _mm_loadu_si128(bytes.as_ptr().cast())) };
    }
    after.copy_from_slice(last);
}

/// Copies bytes by ordinary stores, since there is no other way for this architecture.
///
/// # Panics
/// If the lengths differ.
#[cfg(not(target_arch = "x86_64"))]
pub fn copy(into: &mut [u8], from: &[u8]) {
    into.copy_from_slice(from);
}

/// Orders the stores of [`copy`] before all later ones.
pub fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this architecture has the instruction.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_those_of_the_source_for_any_place_and_length() {
        let from: Vec<u8> = (0..400).map(|at| (at * 31 % 251) as u8).collect();
        for shift in [0, 1, 15, 16, 33] {
            for length in [0, 1, 15, 16, 17, 300] {
                let mut memory = vec![0xee; shift + length + 64];
                copy(&mut memory[shift..shift + length], &from[3..3 + length]);
                fence();
                assert_eq!(memory[shift..shift + length], from[3..3 + length], "{length} bytes at {shift}");
                assert!(memory[..shift].iter().chain(&memory[shift + length..]).all(|&byte| byte == 0xee));
            }
        }
    }
}
