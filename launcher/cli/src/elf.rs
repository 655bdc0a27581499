//! The ELF header and dynamic section of a program.

use std::cell::Cell;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// The relevant part of a 64-bit ELF image.
#[non_exhaustive]
pub struct Elf {
    /// True if the image requests a dynamic linker.
    pub dynamic: bool,
    /// The path of this dynamic linker, if the image contains it.
    pub interpreter: Option<PathBuf>,
    /// The address ranges of the segments, if the image is not position-independent.
    pub fixed_segments: Vec<(usize, usize)>,
    /// The names of the required libraries.
    pub needed: Vec<String>,
}

impl Elf {
    /// Reads an image, or returns `None` if the file is none. Every rank does this and programs may
    /// be large, so only the needed parts are read.
    ///
    /// # Errors
    /// The reason why the file cannot be read.
    pub fn read(file: &File) -> io::Result<Option<Elf>> {
        let failure = Cell::new(None);
        let elf = Elf::parse(&|offset, bytes| {
            let mut part = vec![0; bytes];
            match file.read_exact_at(&mut part, offset as u64) {
                Ok(()) => Some(part),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
                Err(error) => {
                    failure.set(Some(error));
                    None
                }
            }
        });
        failure.take().map_or(Ok(elf), Err)
    }

    /// Parses an image. `part` returns a number of bytes from an offset, or `None` if the file is
    /// too short.
    pub fn parse(part: &dyn Fn(usize, usize) -> Option<Vec<u8>>) -> Option<Elf> {
        let head = part(0, 64)?;
        if &head[..6] != b"\x7fELF\x02\x01" {
            return None;
        }
        const ET_EXEC: u16 = 2;
        let fixed = half(&head, 16)? == ET_EXEC;
        let (table, size, count) =
            (long(&head, 32)?, usize::from(half(&head, 54)?), usize::from(half(&head, 56)?));
        // The kernel accepts at most 64 KiB of program headers.
        if size != 56 || size * count > 65536 {
            return None;
        }
        let headers = part(table, size * count)?;
        let mut elf =
            Elf { dynamic: false, interpreter: None, fixed_segments: Vec::new(), needed: Vec::new() };
        let mut loads = Vec::new();
        let mut dynamic = None;
        const PT_LOAD: u32 = 1;
        const PT_DYNAMIC: u32 = 2;
        const PT_INTERP: u32 = 3;
        const PATH_MAX: usize = 4096;
        for header in headers.chunks_exact(size) {
            let (offset, address, in_file, in_memory) =
                (long(header, 8)?, long(header, 16)?, long(header, 32)?, long(header, 40)?);
            match word(header, 0)? {
                PT_LOAD => loads.push((address, offset, in_file, in_memory)),
                PT_DYNAMIC => dynamic = Some((offset, in_file)),
                PT_INTERP => {
                    elf.dynamic = true;
                    elf.interpreter = part(offset, in_file.min(PATH_MAX)).and_then(path);
                }
                _ => {}
            }
        }
        if fixed {
            elf.fixed_segments = loads.iter().map(|&(a, _, _, n)| (a, a.saturating_add(n))).collect();
        }
        elf.needed =
            dynamic.and_then(|(offset, length)| needed(part, &loads, offset, length)).unwrap_or_default();
        Some(elf)
    }
}

/// Returns the names of the libraries that a dynamic section requires.
fn needed(
    part: &dyn Fn(usize, usize) -> Option<Vec<u8>>,
    loads: &[(usize, usize, usize, usize)],
    offset: usize,
    length: usize,
) -> Option<Vec<String>> {
    const MOST: usize = 1 << 20;
    let section = part(offset, length.min(MOST))?;
    let entries: Vec<(usize, usize)> =
        section.chunks_exact(16).map_while(|entry| Some((long(entry, 0)?, long(entry, 8)?))).collect();
    const DT_NEEDED: usize = 1;
    const DT_STRTAB: usize = 5;
    const DT_STRSZ: usize = 10;
    let value = |tag| entries.iter().find(|e| e.0 == tag).map(|e| e.1);
    let strings = value(DT_STRTAB)?;
    let (address, offset, ..) = *loads.iter().find(|l| l.0 <= strings && strings - l.0 < l.2)?;
    let strings = (strings - address).checked_add(offset)?;
    let size = value(DT_STRSZ)?;
    // The string table of a C++ program is long, so each name is read by itself.
    let name = |at: usize| {
        let text = part(strings.checked_add(at)?, size.checked_sub(at)?.min(256))?;
        let end = text.iter().position(|&b| b == 0)?;
        Some(String::from_utf8_lossy(&text[..end]).into_owned())
    };
    Some(entries.iter().filter(|e| e.0 == DT_NEEDED).filter_map(|e| name(e.1)).collect())
}

/// Returns the path that ends with a NUL in `bytes`.
fn path(bytes: Vec<u8>) -> Option<PathBuf> {
    let text = CString::from_vec_with_nul(bytes).ok()?;
    Some(OsString::from_vec(text.into_bytes()).into())
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?) as usize)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn parse(bytes: &[u8]) -> Option<Elf> {
        Elf::parse(&|offset, length| Some(bytes.get(offset..offset.checked_add(length)?)?.to_vec()))
    }

    #[test]
    fn damaged_images_are_rejected() {
        let image = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(parse(&image).unwrap().dynamic);
        for cut in [0, 5, 16, 40, 63, 64, 100, 500] {
            let _ = parse(&image[..cut]);
        }
        let mut wild = image[..4096].to_vec();
        for at in 16..64 {
            wild[at] = 0xff;
            let _ = parse(&wild);
        }
    }
}
