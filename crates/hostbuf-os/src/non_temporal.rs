//! Copies into memory that is not accessed soon.

#![allow(unsafe_code, reason = "non-temporal stores are intrinsics")]

/// Copies bytes by non-temporal stores, which do not read the cache lines of the destination from
/// memory first. Other threads see the bytes after a [`fence`] of this thread.
///
/// # Panics
/// If the lengths differ.
#[doc(alias = "_mm_stream_si128")]
pub fn copy(into: &mut [u8], from: &[u8]) {
    copy_and_prefetch(into, from, &[]);
}

/// Copies as [`copy`] does, and requests as many bytes of `next`, which the caller reads next, from
/// memory. The prefetchers of a processor stop at the end of each page of 4 KiB, so a single core
/// copies faster with such requests.
///
/// # Panics
/// If the lengths of `into` and `from` differ.
#[cfg(target_arch = "x86_64")]
#[doc(alias = "_mm_prefetch")]
pub fn copy_and_prefetch(into: &mut [u8], from: &[u8], next: &[u8]) {
    use std::arch::x86_64::{__m128i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_stream_si128};

    /// The vectors of a cache line.
    const VECTORS: usize = 4;
    const VECTOR: usize = size_of::<__m128i>();

    assert_eq!(into.len(), from.len());
    // SAFETY: any bytes are valid vectors and valid bytes.
    let (before, vectors, after) = unsafe { into.align_to_mut::<__m128i>() };
    let (first, rest) = from.split_at(before.len());
    before.copy_from_slice(first);
    let (middle, last) = rest.split_at(size_of_val(vectors));
    let mut next = next.chunks(VECTORS * VECTOR);
    for (places, bytes) in vectors.chunks_mut(VECTORS).zip(middle.chunks(VECTORS * VECTOR)) {
        if let Some(line) = next.next() {
            // SAFETY: a prefetch has no effect but on the caches.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
        }
        for (place, bytes) in places.iter_mut().zip(bytes.chunks_exact(VECTOR)) {
            // SAFETY: both are as long as a vector, and the destination is aligned.
            unsafe { _mm_stream_si128(place, _mm_loadu_si128(bytes.as_ptr().cast())) };
        }
    }
    after.copy_from_slice(last);
}

/// Copies bytes by ordinary stores, since there is no other way for this architecture.
///
/// # Panics
/// If the lengths of `into` and `from` differ.
#[cfg(not(target_arch = "x86_64"))]
pub fn copy_and_prefetch(into: &mut [u8], from: &[u8], _next: &[u8]) {
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
            for length in [0, 1, 15, 16, 17, 64, 65, 300] {
                for next in [&from[..0], &from[..70], &from[..]] {
                    let mut memory = vec![0xee; shift + length + 64];
                    copy_and_prefetch(&mut memory[shift..shift + length], &from[3..3 + length], next);
                    fence();
                    assert_eq!(
                        memory[shift..shift + length],
                        from[3..3 + length],
                        "{length} bytes at {shift}"
                    );
                    let mut others = memory[..shift].iter().chain(&memory[shift + length..]);
                    assert!(others.all(|&byte| byte == 0xee));
                }
            }
        }
    }
}
