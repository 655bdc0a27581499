//! A node whose free memory is too fragmented for a huge page.

#![allow(unsafe_code, reason = "calls set_mempolicy, for which no crate has a function")]

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::numa::sys_node::{HUGE_PAGE, PAGE, available};

/// The number of bytes that a pipe holds.
const CAPACITY: usize = 1 << 20;

/// The number of bytes of a free piece. A page at a time would take many seconds.
const PIECE: usize = 16 * PAGE;

/// The kernel keeps little memory in reserve during the test, since huge pages would be left there.
/// It otherwise raises the reserve when huge pages become rare.
const SETTINGS: [(&str, &str); 2] =
    [("/proc/sys/vm/min_free_kbytes", "1024"), ("/proc/sys/vm/watermark_boost_factor", "0")];

/// Memory that leaves others free pages of a node, but hardly a free huge page, until it is
/// dropped. It consists of pages in pipes, which the kernel cannot move to make huge pages.
pub struct FragmentedNode {
    _taken: Vec<FullPipe>,
    settings: Vec<(&'static str, String)>,
}

/// A pipe and the bytes in it.
struct FullPipe {
    _read: File,
    write: File,
    length: usize,
}

impl FullPipe {
    fn new() -> Result<FullPipe, String> {
        let (read, write) = nix::unistd::pipe().map_err(|error| format!("pipe: {error}"))?;
        fcntl(write.as_fd(), FcntlArg::F_SETPIPE_SZ(CAPACITY as i32))
            .map_err(|error| format!("F_SETPIPE_SZ: {error}"))?;
        Ok(FullPipe { _read: read.into(), write: write.into(), length: 0 })
    }

    /// Adds a piece.
    fn push(&mut self) -> Result<(), String> {
        self.length += PIECE;
        self.write.write_all(&[0; PIECE]).map_err(|error| format!("writing to a pipe: {error}"))
    }
}

impl FragmentedNode {
    /// Takes the memory of a node, and frees every second piece of it until `leave` bytes are
    /// available. The kernel's OOM killer spares this process from here on.
    pub fn new(node: u32, leave: usize) -> Result<FragmentedNode, String> {
        let write = |path, value| fs::write(path, value).map_err(|error| format!("{path}: {error}"));
        write("/proc/self/oom_score_adj", "-1000")?;
        write("/proc/sys/vm/drop_caches", "3")?;
        let mut settings = Vec::new();
        for (path, value) in SETTINGS {
            settings.push((path, fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?));
            write(path, value)?;
        }
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).map_err(|error| error.to_string())?;
        setrlimit(Resource::RLIMIT_NOFILE, most, most).map_err(|error| error.to_string())?;
        bind(Some(node))?;
        let (mut kept, mut freed) = (Vec::new(), Vec::new());
        while available(node)? > HUGE_PAGE {
            let (mut one, mut other) = (FullPipe::new()?, FullPipe::new()?);
            while one.length < CAPACITY && available(node)? > HUGE_PAGE {
                for _ in 0..4 {
                    one.push()?;
                    other.push()?;
                }
            }
            kept.push(one);
            freed.push(other);
        }
        bind(None)?;
        while available(node)? < leave {
            freed.pop().ok_or("half of the node is less than what it should leave")?;
        }
        kept.append(&mut freed);
        Ok(FragmentedNode { _taken: kept, settings })
    }
}

impl Drop for FragmentedNode {
    fn drop(&mut self) {
        for (path, value) in &self.settings {
            let _ = fs::write(path, value);
        }
    }
}

/// Binds the pages that this thread takes to a node, or to none.
fn bind(node: Option<u32>) -> Result<(), String> {
    let mask = node.map_or(0, |node| 1u64 << node);
    let mode = if node.is_some() { libc::MPOL_BIND } else { libc::MPOL_DEFAULT };
    let bits = u64::BITS as usize + 1;
    // SAFETY: the kernel reads one bit of the mask less than the call says.
    let result = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, &raw const mask, bits) };
    Errno::result(result).map(drop).map_err(|error| format!("set_mempolicy: {error}"))
}
