//! The ELF note of a copy, which points to its table.
//!
//! A symbol would not do: the loader finds none in a library that was loaded with `RTLD_LOCAL`, as
//! Python loads modules, nor in a program that exports none. The program headers of every object
//! list its notes, in a static program too.
//!
//! The note has the name `hostbuf` and, as its type, the version of the table. The description is
//! the distance of the table from the description, 8 bytes, and the library's version, a text that
//! a zero byte ends. That form is the same in all versions, so a copy can name another one whose
//! table it does not know.

#![allow(unsafe_code, reason = "reads the notes of loaded objects by address")]

use std::ffi::{CStr, CString, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;

use super::table::{ABI, CopyTable};
use crate::forking;

/// The name of the note, with its zero byte.
const NAME: &[u8; 8] = b"hostbuf\0";
static TABLE: CopyTable = CopyTable::new();

// It is written in assembler, since a distance is no constant in Rust, and an address would need a
// relocation in memory that is read-only.
std::arch::global_asm!(
    concat!(
        ".pushsection .note.hostbuf,\"a\",@note\n",
        ".balign 4\n",
        ".long 8, 3f - 2f, {abi}\n",
        ".asciz \"hostbuf\"\n",
        "2: .quad {table} - .\n",
        ".asciz \"",
        env!("CARGO_PKG_VERSION"),
        "\"\n",
        "3: .balign 4\n",
        ".popsection\n",
    ),
    abi = const ABI,
    table = sym TABLE,
);

/// Returns the table of this copy.
pub(super) fn own() -> &'static CopyTable {
    &TABLE
}

/// A copy that the dynamic loader lists.
#[derive(Clone)]
pub(super) struct FoundCopy {
    pub(super) table: *const CopyTable,
    pub(super) abi: u32,
    pub(super) version: String,
    /// The name of the object, as the loader has it.
    object: CString,
    /// True for the program itself, which cannot be unloaded.
    is_program: bool,
}

impl FoundCopy {
    /// Returns the path of the object.
    pub(super) fn display_path(&self) -> String {
        let program =
            || std::env::current_exe().map_or("the program".into(), |path| path.display().to_string());
        match self.is_program {
            true => program(),
            false => OsStr::from_bytes(self.object.as_bytes()).display().to_string(),
        }
    }

    /// Prevents that the object is unloaded. Returns false if it is not loaded any more.
    pub(super) fn keep_loaded(&self) -> bool {
        let flags = libc::RTLD_LAZY | libc::RTLD_LOCAL | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
        // SAFETY: loads nothing: it only finds an object that is loaded, by the loader's own name
        // for it.
        self.is_program || !unsafe { libc::dlopen(self.object.as_ptr(), flags) }.is_null()
    }
}

/// The state of [`scan`].
struct Scan {
    objects: usize,
    found: Vec<FoundCopy>,
}

/// Returns all copies, in the order in which the loader lists their objects. A copy that has not
/// joined may be unloaded at any time.
pub(super) fn scan() -> Vec<FoundCopy> {
    let _scanning = forking::scanning();
    let mut scan = Scan { objects: 0, found: Vec::new() };
    // SAFETY: the callback gets the pointer to `scan`, which lives during the call.
    unsafe { libc::dl_iterate_phdr(Some(add_copies), (&raw mut scan).cast()) };
    scan.found
}

unsafe extern "C" fn add_copies(info: *mut libc::dl_phdr_info, _: usize, scan: *mut c_void) -> c_int {
    // SAFETY: both are valid during the callback, and the object is not unloaded meanwhile.
    let (info, scan) = unsafe { (&*info, &mut *scan.cast::<Scan>()) };
    let is_program = scan.objects == 0;
    scan.objects += 1;
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the object's program headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize) };
    let is_loaded = |note: &libc::Elf64_Phdr| {
        let covers = |load: &libc::Elf64_Phdr| {
            load.p_type == libc::PT_LOAD
                && load.p_flags & libc::PF_R != 0
                && load.p_vaddr <= note.p_vaddr
                && note.p_vaddr + note.p_memsz <= load.p_vaddr + load.p_memsz
        };
        note.p_type == libc::PT_NOTE && headers.iter().any(covers)
    };
    for note in headers.iter().filter(|header| is_loaded(header)) {
        let start = (info.dlpi_addr + note.p_vaddr) as *const u8;
        // SAFETY: a part of a loaded, readable segment.
        let bytes = unsafe { std::slice::from_raw_parts(start, note.p_memsz as usize) };
        let notes = Notes { bytes, at: 0, align: (note.p_align as usize).max(4) };
        for (abi, at, description) in notes {
            let Some((distance, version)) = description.split_first_chunk::<8>() else { continue };
            let version = version.split(|byte| *byte == 0).next().unwrap_or_default();
            // SAFETY: the name of the object is a text.
            let object = unsafe { CStr::from_ptr(info.dlpi_name) }.to_owned();
            let table = start.wrapping_add(at).wrapping_offset(i64::from_ne_bytes(*distance) as isize);
            let (table, version) = (table.cast(), String::from_utf8_lossy(version).into_owned());
            scan.found.push(FoundCopy { table, abi, version, object, is_program });
        }
    }
    0
}

/// The notes with the library's name in a segment: their types, the offsets of their descriptions,
/// and the descriptions.
struct Notes<'a> {
    bytes: &'a [u8],
    at: usize,
    align: usize,
}

impl<'a> Iterator for Notes<'a> {
    type Item = (u32, usize, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let header = self.bytes.get(self.at..self.at.checked_add(12)?)?;
            let word =
                |n: usize| u32::from_ne_bytes([header[n], header[n + 1], header[n + 2], header[n + 3]]);
            let (name_length, length, kind) = (word(0) as usize, word(4) as usize, word(8));
            let name_at = self.at + 12;
            let description_at = name_at.checked_add(name_length)?.checked_next_multiple_of(self.align)?;
            let end = description_at.checked_add(length)?;
            let name = self.bytes.get(name_at..name_at + name_length)?;
            let description = self.bytes.get(description_at..end)?;
            self.at = end.checked_next_multiple_of(self.align)?;
            if name == NAME {
                return Some((kind, description_at, description));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(name: &[u8], kind: u32, description: &[u8]) -> Vec<u8> {
        let words = [name.len() as u32, description.len() as u32, kind];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        for part in [name, description] {
            bytes.extend_from_slice(part);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn notes_are_found_among_others_and_damaged_ones_end_the_list() {
        let bytes =
            [note(b"GNU\0", 3, &[1; 20]), note(NAME, 7, b"abcdefgh1.2\0"), note(NAME, 1, &[])].concat();
        fn notes(bytes: &[u8]) -> Vec<(u32, usize, &[u8])> {
            Notes { bytes, at: 0, align: 4 }.collect()
        }
        let at = note(b"GNU\0", 3, &[1; 20]).len() + 20;
        assert_eq!(notes(&bytes), [(7, at, &b"abcdefgh1.2\0"[..]), (1, bytes.len(), &[][..])]);
        for cut in 0..bytes.len() {
            assert!(notes(&bytes[..cut]).len() < 2);
        }
        let mut huge = note(NAME, 1, b"text");
        huge[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert!(notes(&huge).is_empty());
        huge[..4].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert!(notes(&huge).is_empty());
    }
}
