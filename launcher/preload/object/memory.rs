//! The memory functions that the compiler calls by name. Local to the object: a version script
//! hides them, or they would replace libc's in every program of the job.

#![allow(unsafe_code, reason = "the memory functions of C take pointers, and have fixed names")]

use hostbuf_preload::memory;

#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
    // SAFETY: by the contract of memcpy.
    unsafe { memory::copy(to, from, n) };
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
    // SAFETY: by the contract of memmove.
    unsafe { memory::copy_overlapping(to, from, n) };
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, n: usize) -> *mut u8 {
    // SAFETY: by the contract of memset.
    unsafe { memory::set(to, value as u8, n) };
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    // SAFETY: by the contract of memcmp.
    unsafe { memory::compare(a, b, n) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    // SAFETY: by the contract of bcmp, which is that of memcmp.
    unsafe { memory::compare(a, b, n) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    // SAFETY: by the contract of strlen.
    unsafe { memory::length(text) }
}
