//! The size of the pages of a mapping of a loaded file that is made as a program makes it.

#![allow(unsafe_code, reason = "maps a file as a program does, and reads a byte of it")]

use std::fs::{self, File};
use std::io;
use std::num::NonZeroUsize;
use std::path::Path;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use super::loaded_file::HUGE_PAGE;

/// Returns the size in bytes of the page that a mapping of the file at `path` has in its first
/// extent of 2 MiB. The mapping is made as a program makes it: of the whole file, read-only, at an
/// address of the kernel's choice. The file has `bytes` bytes, at least one.
///
/// # Errors
/// As `open(2)`, `mmap(2)` and reading `/proc/self/smaps`.
pub(super) fn mapped_page(path: &Path, bytes: u64) -> io::Result<u64> {
    let file = File::open(path)?;
    let length =
        usize::try_from(bytes).ok().and_then(NonZeroUsize::new).ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: a new mapping, at an address of the kernel's choice.
    let start = unsafe { mmap(None, length, ProtFlags::PROT_READ, MapFlags::MAP_PRIVATE, &file, 0)? };
    let address = start.as_ptr() as u64;
    // The first extent of the file that can be a huge page, if there is a whole one.
    let extent = address.next_multiple_of(HUGE_PAGE) - address;
    let at = if extent + HUGE_PAGE <= bytes { extent } else { 0 };
    // SAFETY: inside the mapping, whose pages the file has, and the file cannot shrink.
    let _ = unsafe { start.as_ptr().cast::<u8>().add(at as usize).read_volatile() };
    let smaps = fs::read_to_string("/proc/self/smaps");
    // SAFETY: mapped above, and nothing refers to it.
    unsafe { munmap(start, length.get())? };
    page_in(&smaps?, address).ok_or_else(|| io::Error::other("/proc/self/smaps has no line about a mapping"))
}

/// Returns the size of the pages of the mapping at `address`, from the text of `/proc/PID/smaps`.
fn page_in(smaps: &str, address: u64) -> Option<u64> {
    let header = format!("{address:08x}-");
    let lines = smaps.lines().skip_while(|line| !line.starts_with(&header)).skip(1);
    let fields = lines.map_while(|line| line.split_once(':').filter(|(name, _)| !name.contains('-')));
    let (mut huge, mut page) = (0, None);
    for (name, value) in fields {
        let bytes =
            value.trim().strip_suffix(" kB").and_then(|number| Some(number.parse::<u64>().ok()? << 10));
        match name {
            "ShmemPmdMapped" | "FilePmdMapped" => huge += bytes?,
            "KernelPageSize" => page = bytes,
            _ => {}
        }
    }
    page.map(|page| if huge > 0 { HUGE_PAGE } else { page })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_one_mapping_is_found() {
        let text = "7f0000000000-7f0000400000 r--p 00000000 00:01 77 /memfd:hostbuf:a (deleted)\n\
                    Size:               4096 kB\nKernelPageSize:        4 kB\nShmemPmdMapped:     2048 kB\nVmFlags: rd\n\
                    7f0000400000-7f0000401000 r--p 00000000 00:01 78 /memfd:hostbuf:b (deleted)\n\
                    KernelPageSize:       16 kB\nShmemPmdMapped:        0 kB\nFilePmdMapped:         0 kB\n";
        assert_eq!(page_in(text, 0x7f00_0000_0000), Some(2 << 20));
        assert_eq!(page_in(text, 0x7f00_0040_0000), Some(16 << 10));
        assert_eq!(page_in(text, 0x7f00_0050_0000), None);
    }

    #[test]
    fn a_mapping_of_this_process_has_a_page_size() {
        let page = mapped_page(&std::env::current_exe().unwrap(), 4096).unwrap();
        assert!(page >= 4096 && page.is_power_of_two(), "{page}");
    }
}
