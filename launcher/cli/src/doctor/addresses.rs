//! The free address ranges for buffers.

#![allow(unsafe_code, reason = "reserves and releases address ranges")]

use hostbuf::segment::Layout;
use hostbuf::{BufferOptions, Bytes};
use hostbuf_os::maps;
use hostbuf_os::raw::{self, Errno};
use hostbuf_protocol::candidates::{SEARCH_FROM, TOP};
use nix::sys::resource::{Resource, getrlimit};

use super::kernel_text::{knob, reason};
use crate::engines;
use crate::finding::{Finding, Mark};

/// The windows in which the ranks look for a common address first, and the programs that can use
/// them.
const WINDOWS: [(usize, &str); 4] = [
    (0x5500_0000_0000, "usable by every program, with sanitizers too"),
    (0x3000_0000_0000, "usable by programs without sanitizers"),
    (0x1700_0000_0000, "usable by programs without sanitizers"),
    (0x4100_0000_0000, "usable by programs without sanitizers"),
];
/// The buffer whose addresses are tried without `--size`.
const TRIAL: u64 = 1 << 30;

pub fn lines(size: Option<u64>) -> Vec<Finding> {
    // The reservation that a job would request: the buffer, the control page and the guards between
    // them.
    let layout = Layout::of(&[BufferOptions::new(size.unwrap_or(TRIAL))]);
    let (length, align) = (layout.length, layout.align);
    let held: Vec<_> = WINDOWS.iter().map(|&(address, _)| hold(address, length)).collect();
    let none = held.iter().all(Result::is_err) && !elsewhere(length, align);
    let mut lines: Vec<Finding> = WINDOWS
        .iter()
        .zip(&held)
        .map(|(&(address, who), held)| window(address, who, size.unwrap_or(TRIAL), held, none))
        .collect();
    lines.extend([replace(), address_space(size), mappings()]);
    lines
}

/// Reserves `length` bytes at `address`, and releases them.
fn hold(address: usize, length: u64) -> Result<(), Errno> {
    let length = usize::try_from(length).map_err(|_| Errno::NOMEM)?;
    raw::hold(address, length)?;
    // SAFETY: the reservation was just made, and no other code knows of it.
    unsafe { raw::unmap(address, length) };
    Ok(())
}

/// Checks whether the search above the windows finds a free range.
fn elsewhere(length: u64, align: u64) -> bool {
    let (Ok(bytes), Ok(align)) = (usize::try_from(length), usize::try_from(align)) else { return false };
    SEARCH_FROM.into_iter().any(|from| {
        let hole = maps::hole(from, bytes, align, TOP).ok().flatten();
        hole.is_some_and(|address| hold(address, length).is_ok())
    })
}

fn window(address: usize, who: &str, size: u64, held: &Result<(), Errno>, none: bool) -> Finding {
    let name = format!("window {address:#x}");
    let room = format!("room for {}", Bytes(size));
    let line = match held {
        Ok(()) => Finding::ok(name, format!("{room} can be reserved: {who}")),
        Err(Errno::EXIST) => Finding::note(
            name,
            format!(
                "this program has a mapping within {room}: ranks that have one too agree on another address"
            ),
        ),
        Err(e) => {
            let why = reason(&std::io::Error::from_raw_os_error(e.0));
            Finding::note(name, format!("{room} cannot be reserved: {why} (see RLIMIT_AS)"))
        }
    };
    let line = line.value("address", format!("{address:#x}")).value("size_bytes", size);
    if !none {
        return line;
    }
    Finding { mark: Mark::Lacks, ..line }.needed()
}

/// Reserves one page twice: the second reservation must fail, and leave the first one as it was.
fn replace() -> Finding {
    const NAME: &str = "MAP_FIXED_NOREPLACE";
    let page = usize::try_from(hostbuf_os::memory::page_size()).unwrap_or(4096);
    let found = maps::hole(WINDOWS[2].0, page, page, WINDOWS[0].0);
    let Ok(Some(address)) = found else {
        return Finding::lacks(NAME, "not tested: no page of the address space is free, or /proc is missing")
            .needed();
    };
    let (first, second) = (raw::hold(address, page), raw::hold(address, page));
    if first.is_ok() {
        // SAFETY: the first call reserved it, and the second one failed or reserved the same page.
        unsafe { raw::unmap(address, page) };
    }
    let line = match (first, second) {
        (Ok(()), Err(Errno::EXIST)) => Finding::ok(NAME, "an occupied address is refused, not overwritten"),
        (Err(e), _) => {
            let why = reason(&std::io::Error::from_raw_os_error(e.0));
            Finding::lacks(NAME, format!("a free page at {address:#x} cannot be reserved: {why}"))
        }
        _ => Finding::lacks(NAME, "an occupied address was reserved again").mend("Linux 4.17 or later"),
    };
    line.needed()
}

/// Checks the limit on the address space (`ulimit -v`), which includes reservations.
fn address_space(size: Option<u64>) -> Finding {
    const NAME: &str = "RLIMIT_AS (ulimit -v)";
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_AS) else {
        return Finding::note(NAME, "the kernel does not report the limit");
    };
    if soft == libc::RLIM_INFINITY {
        return Finding::ok(NAME, "unlimited");
    }
    let says = format!("{} of address space for each process; a buffer counts in full", Bytes(soft));
    let enough = soft / 2 > size.unwrap_or(TRIAL);
    let line = if enough { Finding::note(NAME, says) } else { Finding::lacks(NAME, says) };
    let line = line.value("soft_bytes", soft);
    if hard == libc::RLIM_INFINITY {
        line.mend("ulimit -v unlimited")
    } else {
        let line = line.mend("/etc/security/limits.conf: * - as unlimited");
        engines::limit_remedies(Resource::RLIMIT_AS).fold(line, Finding::mend)
    }
}

/// Checks the limit on mappings. Each buffer takes two, so the finding concerns the program's own
/// mappings.
fn mappings() -> Finding {
    const NAME: &str = "vm.max_map_count";
    match knob("/proc/sys/vm/max_map_count").and_then(|t| t.parse::<u64>().ok()) {
        None => Finding::note(NAME, "the kernel does not report the limit"),
        Some(count) if count < 4096 => {
            let says = format!("{count} mappings for each process: a large program may have none left");
            Finding::lacks(NAME, says).value("count", count).mend("root: sysctl vm.max_map_count=65530")
        }
        Some(count) => Finding::ok(NAME, format!("{count}; hostbuf adds two for each buffer and one more"))
            .value("count", count),
    }
}
