//! The check that a mapping still has its pages, by `/proc/self/pagemap`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use hostbuf_register::Span;

/// The size of an entry of the page map, in bytes.
const ENTRY: usize = 8;
/// The bit of a page that is in memory and mapped.
const PRESENT: u8 = 0x80;

/// Returns whether all pages of `span`, which begins and ends at a page, are mapped. `step` is the
/// distance in bytes at which the entries are read: the size of a page of the file.
///
/// When a file is truncated, or a hole is punched in it, the kernel removes the pages from all
/// mappings. They stay away from a mapping that nothing accesses, even if the file has new pages.
///
/// # Errors
/// As `open(2)` and `read(2)` of `/proc/self/pagemap`.
pub(super) fn all_present(span: Span, step: usize) -> io::Result<bool> {
    let page = hostbuf_os::memory::page_size() as usize;
    let list = File::open("/proc/self/pagemap")?;
    let present = |entry: &[u8]| entry[ENTRY - 1] & PRESENT != 0;
    let offset_of = |address: usize| (address / page * ENTRY) as u64;
    if step > page {
        let mut entry = [0; ENTRY];
        for address in (span.start()..span.end()).step_by(step) {
            list.read_exact_at(&mut entry, offset_of(address))?;
            if !present(&entry) {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    let mut entries = [0; 512 * ENTRY];
    let mut address = span.start();
    while address < span.end() {
        let pages = (span.end() - address).div_ceil(page).min(512);
        let read = &mut entries[..pages * ENTRY];
        list.read_exact_at(read, offset_of(address))?;
        if !read.chunks_exact(ENTRY).all(present) {
            return Ok(false);
        }
        address += pages * page;
    }
    Ok(true)
}
