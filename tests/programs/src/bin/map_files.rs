//! A rank that maps the files of `--as-files`. `map_files ORIGINALS` compares the files in the
//! folder `HOSTBUF_FILES` with those in the folder ORIGINALS, checks that they cannot be changed,
//! and prints the memory of their mappings while all ranks of the host have them.

#![allow(unsafe_code, reason = "maps files as programs in C do")]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Result, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use hostbuf::job::{Collective, Local, Reduce};

fn main() {
    let originals = PathBuf::from(std::env::args_os().nth(1).expect("map_files ORIGINALS"));
    let folder = PathBuf::from(std::env::var_os("HOSTBUF_FILES").expect("the launcher sets it"));
    let group = Local::from_env().expect("the agent answers");
    let names = names(&originals);
    assert_eq!(names, self::names(&folder), "the names of the files");
    let mut mappings = Vec::new();
    let mut bytes = 0;
    for name in &names {
        let contents = fs::read(originals.join(name)).expect("it can be read");
        let path = folder.join(name);
        check_metadata(&path, contents.len() as u64);
        refuse_changes(&path);
        bytes += contents.len();
        if !contents.is_empty() {
            let mapping = map(&File::open(&path).expect("it can be opened"), contents.len());
            assert!(mapping == contents, "{}", path.display());
            mappings.push(mapping);
        }
    }
    // Both counts belong to one moment, in which every rank has the mappings.
    let barrier = || group.all_reduce(&mut [0], Reduce::Sum).expect("all ranks take part");
    barrier();
    let (rss, pss) = memory_of_mappings();
    barrier();
    println!("rank {} files {} bytes {bytes} rss {rss} pss {pss}", group.rank(), names.len());
}

/// Returns the names of the visible files in a folder.
fn names(folder: &Path) -> BTreeSet<OsString> {
    let entries = fs::read_dir(folder).expect("it is a folder");
    let names = entries.map(|entry| entry.expect("it can be read").file_name());
    names.filter(|name| !name.as_encoded_bytes().starts_with(b".")).collect()
}

fn check_metadata(path: &Path, bytes: u64) {
    let found = fs::metadata(path).expect("the link leads to a file");
    assert!(found.is_file() && found.len() == bytes, "{}: {found:?}", path.display());
    assert_eq!(found.permissions().mode() & 0o777, 0o400, "{}", path.display());
    // The last page of a file is whole.
    assert_eq!(found.blocks() * 512, bytes.next_multiple_of(4096), "{}", path.display());
}

/// Checks that the kernel refuses each way to change a file.
fn refuse_changes(path: &Path) {
    let is_refused = |result: Result<()>| {
        result.is_err_and(|error| matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)))
    };
    // Root may open a file for writing whatever its permissions.
    if let Ok(mut file) = File::options().write(true).read(true).open(path) {
        assert!(is_refused(file.write_all_at(b"x", 0)) && is_refused(file.write_all(b"x")));
        assert!(is_refused(file.set_len(0)) || file.metadata().expect("it is open").len() == 0);
        assert!(is_refused(file.set_len(1 << 30)));
        let (rights, length) = (libc::PROT_READ | libc::PROT_WRITE, 4096);
        // SAFETY: a new mapping, which the kernel refuses.
        let mapped = unsafe {
            libc::mmap(std::ptr::null_mut(), length, rights, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_eq!(mapped, libc::MAP_FAILED, "{}", path.display());
    }
}

/// Maps all of a file, and leaves the mapping in place.
fn map(file: &File, length: usize) -> &'static [u8] {
    let flags = libc::MAP_SHARED;
    // SAFETY: a new mapping. Nobody can truncate or change the file.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, flags, file.as_raw_fd(), 0);
        assert_ne!(at, libc::MAP_FAILED);
        std::slice::from_raw_parts(at.cast(), length)
    }
}

/// Returns the resident and the proportional memory of all mappings of loaded files, in bytes.
fn memory_of_mappings() -> (u64, u64) {
    let text = fs::read("/proc/self/smaps").expect("/proc is mounted");
    let (mut is_loaded, mut rss, mut pss) = (false, 0, 0);
    for line in String::from_utf8_lossy(&text).lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        if name.contains('-') {
            is_loaded = line.contains("/memfd:hostbuf:") && line.contains(":/files/");
        }
        let kilobytes = || value.trim().trim_end_matches(" kB").parse::<u64>().expect("a number");
        match name {
            "Rss" if is_loaded => rss += kilobytes() << 10,
            "Pss" if is_loaded => pss += kilobytes() << 10,
            _ => {}
        }
    }
    (rss, pss)
}
