//! Reads into memory that is not accessed soon.

#![allow(unsafe_code, reason = "non-temporal stores are intrinsics")]

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The bytes that the kernel copies at a time, which stay in the cache of the core.
const BLOCK: usize = 128 << 10;
/// The least bytes that are worth a second copy.
const LEAST: usize = 2 * BLOCK;

thread_local! {
    static COPIED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Reads bytes at `offset` by blocks, which are copied to `into` by non-temporal stores.
///
/// The kernel copies by stores that read each line of the destination from memory first, and write
/// it later. Two copies, of which one stays in the cache and the other writes only, move fewer
/// bytes to and from memory.
///
/// # Errors
/// As `pread(2)`, if no byte was read.
pub(super) fn read_at(file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
    if into.len() < LEAST || !cfg!(target_arch = "x86_64") {
        return file.read_at(into, offset);
    }
    COPIED.with_borrow_mut(|copied| {
        copied.resize(BLOCK, 0);
        let mut done = 0;
        while done < into.len() {
            let wanted = BLOCK.min(into.len() - done);
            let bytes = match file.read_at(&mut copied[..wanted], offset + done as u64) {
                Ok(bytes) => bytes,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            };
            copy(&mut into[done..done + bytes], &copied[..bytes]);
            done += bytes;
            if bytes < wanted {
                break;
            }
        }
        fence();
        Ok(done)
    })
}

/// Copies bytes by non-temporal stores. Other threads see them after a [`fence`].
#[cfg(target_arch = "x86_64")]
fn copy(into: &mut [u8], from: &[u8]) {
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

#[cfg(not(target_arch = "x86_64"))]
fn copy(into: &mut [u8], from: &[u8]) {
    into.copy_from_slice(from);
}

/// Orders non-temporal stores before all later ones.
fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this architecture has the instruction.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::tests::DiskFile;

    #[test]
    fn the_bytes_are_those_of_pread_for_any_place_and_length() {
        let content: Vec<u8> = (0..5 * BLOCK + 77).map(|at| (at * 31 % 251) as u8).collect();
        let disk = DiskFile::new("non-temporal", &content);
        let file = File::open(&disk.0).unwrap();
        let lengths = [0, 1, LEAST - 1, LEAST, LEAST + 1, 3 * BLOCK + 5, content.len(), content.len() + 100];
        for length in lengths {
            for (shift, offset) in [(0, 0), (1, 0), (15, 3), (16, 4096), (33, BLOCK)] {
                let mut memory = vec![0xee; shift + length + 64];
                let into = &mut memory[shift..shift + length];
                let read = read_at(&file, into, offset as u64).unwrap();
                let expected = &content[offset..content.len().min(offset + length)];
                assert_eq!(read, expected.len());
                assert!(into[..read] == *expected, "{length} bytes at {offset}");
                assert!(memory[..shift].iter().chain(&memory[shift + read..]).all(|&byte| byte == 0xee));
            }
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_an_error() {
        let disk = DiskFile::new("non-temporal-error", &[1; 2 * LEAST]);
        let written = std::fs::OpenOptions::new().write(true).open(&disk.0).unwrap();
        let error = read_at(&written, &mut [0; LEAST], 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(nix::errno::Errno::EBADF as i32));
    }
}
