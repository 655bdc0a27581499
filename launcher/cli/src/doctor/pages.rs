//! The page sizes that are available for buffers.

#![allow(unsafe_code, reason = "touches a page of a mapping by its address")]

use std::io;
use std::os::fd::AsFd;

use hostbuf::Bytes;
use hostbuf_memory::memfd::{self, Backing};
use hostbuf_memory::{FileMapping, MappingRefused};
use hostbuf_os::memory;

use super::kernel_text::reason;
use crate::finding::{Finding, Mark};

const EXTENT: usize = 2 << 20;
const MADV_COLLAPSE: libc::c_int = 25;

pub fn lines(size: Option<u64>) -> Vec<Finding> {
    let transparent = transparent();
    let have_transparent = transparent.mark == Mark::Ok;
    vec![
        transparent,
        pool(2 << 20, size, have_transparent),
        pool(1 << 30, size, have_transparent),
        populate(),
    ]
}

/// Maps two extents of a memory file at a multiple of 2 MiB. The mapping keeps the file.
fn map_trial() -> io::Result<FileMapping> {
    let length = 2 * EXTENT as u64;
    let file = memfd::create("hostbuf-doctor", length, Backing::Shmem)?;
    FileMapping::new(file.as_fd(), 0, length, EXTENT).map_err(|refused| {
        let (MappingRefused::Addresses(errno) | MappingRefused::File(errno)) = refused;
        io::Error::from_raw_os_error(errno)
    })
}

/// Applies an advice of madvise(2) to `length` bytes from the beginning.
fn advise(trial: &FileMapping, length: usize, advice: libc::c_int) -> io::Result<()> {
    trial.advise(0, length as u64, advice).map_err(io::Error::from_raw_os_error)
}

/// Writes a byte at the beginning of each extent.
fn touch(trial: &FileMapping) {
    for extent in 0..2 {
        let at = (trial.start() + extent * EXTENT) as *mut u8;
        // SAFETY: inside the mapping, which is writable and which only this trial uses.
        unsafe { at.write_volatile(1) };
    }
}

/// Makes huge pages of a memory file in the same way as hostbuf, whatever the kernel's setting is.
fn collapse() -> io::Result<()> {
    let trial = map_trial()?;
    let _ = advise(&trial, 2 * EXTENT, libc::MADV_HUGEPAGE);
    touch(&trial);
    let mut tries = 0;
    loop {
        tries += 1;
        match advise(&trial, 2 * EXTENT, MADV_COLLAPSE) {
            Err(e) if tries < 10 && matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) => {}
            other => return other,
        }
    }
}

fn transparent() -> Finding {
    const NAME: &str = "THP for memory files";
    const KNOB: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let knob = memory::selected(KNOB);
    let shown = knob.clone().unwrap_or_else(|| "absent".into());
    let tried = collapse();
    let line = match &tried {
        Ok(()) => Finding::ok(
            NAME,
            format!("a test of 4 MiB got huge pages (MADV_COLLAPSE; shmem_enabled: {shown})"),
        ),
        Err(e) => {
            let says = format!("a test got none: {} (shmem_enabled: {shown})", reason(e));
            let touched = matches!(shown.as_str(), "always" | "within_size" | "advise" | "force");
            match (e.raw_os_error(), touched) {
                (Some(libc::EFBIG), _) => {
                    Finding::note(NAME, says).mend("ulimit -f unlimited, then run hostbuf doctor again")
                }
                (Some(libc::EINVAL), true) => Finding::note(
                    NAME,
                    format!("{says}; the kernel allocates them at the first access instead"),
                ),
                (Some(libc::EINVAL), false) if shown != "absent" => {
                    Finding::lacks(NAME, says).mend(format!("root: echo advise > {KNOB}, or Linux 6.1"))
                }
                (Some(libc::EAGAIN | libc::ENOMEM | libc::EBUSY), _) => Finding::lacks(NAME, says)
                    .mend("memory is fragmented, root: echo 1 > /proc/sys/vm/compact_memory"),
                _ => Finding::lacks(NAME, says)
                    .mend("a kernel with CONFIG_TRANSPARENT_HUGEPAGE=y, or reserved pages (below)"),
            }
        }
    };
    line.value("shmem_enabled", knob).value("collapse_works", tried.is_ok())
}

/// Reports the pool of reserved pages of `page` bytes.
fn pool(page: u64, size: Option<u64>, have_transparent: bool) -> Finding {
    let name = format!("reserved pages of {}", Bytes(page));
    let folder = format!("/sys/kernel/mm/hugepages/hugepages-{}kB", page >> 10);
    let Some(pool) = memory::huge_pool(page) else {
        return Finding::note(name, "this kernel or processor does not support this size");
    };
    let wanted = size.unwrap_or(1 << 30).div_ceil(page);
    let says = format!("{} free of {}", pool.free, pool.total);
    let add = pool.total + wanted.saturating_sub(pool.free);
    let command = match page {
        0x20_0000 => format!("root: echo {add} > /proc/sys/vm/nr_hugepages"),
        _ => format!("root: echo {add} > {folder}/nr_hugepages (or hugepagesz=1G hugepages={add} at boot)"),
    };
    // The kernel takes pages for the pool from free memory.
    let missing = wanted.saturating_sub(pool.free).saturating_mul(page);
    let there = memory::meminfo("MemAvailable").is_some_and(|free| missing <= free);
    let offer = |line: Finding| {
        if there { line.mend(format!("for {}, {command}", Bytes(wanted * page))) } else { line }
    };
    let enough = if size.is_some() { pool.free >= wanted } else { pool.free > 0 };
    let line = if enough {
        Finding::ok(name, says)
    } else if have_transparent || page > 2 << 20 {
        let why = if have_transparent {
            "transparent huge pages serve as well"
        } else {
            "pages of 2 MiB serve nearly as well"
        };
        offer(Finding::note(name, format!("{says}; {why}")))
    } else {
        offer(Finding::lacks(name, format!("{says}: buffers use small pages")))
    };
    line.value("free", pool.free).value("total", pool.total).value("page_bytes", page)
}

/// Checks that pages can be allocated without a write to each, so that a full host causes an error
/// instead of SIGBUS.
fn populate() -> Finding {
    const NAME: &str = "MADV_POPULATE_WRITE";
    match map_trial().and_then(|trial| advise(&trial, EXTENT, libc::MADV_POPULATE_WRITE)) {
        Ok(()) => Finding::ok(
            NAME,
            "pages are allocated before use, so a full host causes an error and never SIGBUS",
        ),
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
            Finding::note(NAME, "this kernel lacks it: hostbuf uses fallocate, which is slower")
                .mend("Linux 5.14")
        }
        Err(e) if e.raw_os_error() == Some(libc::EFBIG) => {
            Finding::note(NAME, format!("not tested: {}", reason(&e)))
                .mend("ulimit -f unlimited, then run hostbuf doctor again")
        }
        Err(e) => Finding::lacks(NAME, format!("{}: pages cannot be allocated before use", reason(&e))),
    }
}
