//! Reads into memory that is not accessed soon.

use std::cell::RefCell;
use std::io;

use hostbuf_os::non_temporal::{copy, fence};

/// The bytes that the kernel copies at a time, which stay in the cache of the core.
const BLOCK: usize = 128 << 10;
/// The least bytes that are worth a second copy.
const LEAST: usize = 2 * BLOCK;

thread_local! {
    static COPIED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Reads bytes at `offset` by blocks, which are copied to `into` by non-temporal stores, until a
/// block is not complete. `read` reads a block at an offset.
///
/// The kernel's stores read each cache line of the destination from memory before they write it
/// (read for ownership). Copying to a block in the cache, and from there by non-temporal stores,
/// moves fewer bytes to and from memory.
///
/// # Errors
/// The error of `read`, if no byte was read; [`WouldBlock`](io::ErrorKind::WouldBlock) if `read`
/// has found none; [`Unsupported`](io::ErrorKind::Unsupported) if another way is faster.
pub(super) fn read_at(
    into: &mut [u8],
    offset: u64,
    mut read: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
) -> io::Result<usize> {
    if into.len() < LEAST || !cfg!(target_arch = "x86_64") {
        return Err(io::ErrorKind::Unsupported.into());
    }
    COPIED.with_borrow_mut(|copied| {
        copied.resize(BLOCK, 0);
        let mut done = 0;
        while done < into.len() {
            let wanted = BLOCK.min(into.len() - done);
            let bytes = match read(&mut copied[..wanted], offset + done as u64) {
                // Linux 5.9 and 5.10 return 0 for a block that is not in the page cache.
                Ok(0) if done == 0 => return Err(io::ErrorKind::WouldBlock.into()),
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_those_of_the_source_for_any_place_and_length() {
        let content: Vec<u8> = (0..5 * BLOCK + 77).map(|at| (at * 31 % 251) as u8).collect();
        let read = |block: &mut [u8], offset: u64| {
            let rest = &content[content.len().min(offset as usize)..];
            let bytes = block.len().min(rest.len());
            block[..bytes].copy_from_slice(&rest[..bytes]);
            Ok(bytes)
        };
        for length in [LEAST, LEAST + 1, 3 * BLOCK + 5, content.len(), content.len() + 100] {
            for (shift, offset) in [(0, 0), (1, 0), (15, 3), (16, 4096), (33, BLOCK)] {
                let mut memory = vec![0xee; shift + length + 64];
                let into = &mut memory[shift..shift + length];
                let found = read_at(into, offset as u64, read).unwrap();
                let expected = &content[offset..content.len().min(offset + length)];
                assert_eq!(found, expected.len());
                assert!(into[..found] == *expected, "{length} bytes at {offset}");
                assert!(memory[..shift].iter().chain(&memory[shift + found..]).all(|&byte| byte == 0xee));
            }
        }
    }

    #[test]
    fn a_block_that_is_not_there_ends_the_read() {
        let read = |block: &mut [u8], offset: u64| match offset {
            0 => Ok(block.len()),
            _ => Err(io::ErrorKind::WouldBlock.into()),
        };
        let mut into = vec![0; LEAST];
        assert_eq!(read_at(&mut into, 0, read).unwrap(), BLOCK);
        let error = read_at(&mut into, BLOCK as u64, read).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let error = read_at(&mut into, 0, |_, _| Ok(0)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "it is not the end of the file for sure");
        let error = read_at(&mut into[1..], 0, read).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported, "a short read has no use for it");
    }
}
