//! The processes of the ranks of a host, whose ends their leader notices.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use hostbuf_os::process;

use crate::error::Result;
use crate::job::Collective;

/// The number of words that identify a process.
const WORDS: usize = 3;

/// Another rank of this host, as its leader watches it.
#[derive(Debug)]
pub(super) struct WatchedRank {
    /// The rank among those of this host.
    pub(super) local_rank: u64,
    /// The number of the process.
    pub(super) pid: i32,
    /// A descriptor that becomes readable when the process ends; `None` if it has ended.
    pub(super) end: Option<OwnedFd>,
}

/// Returns the other ranks of a host that this rank can watch. It cannot watch those in another PID
/// namespace, nor any before Linux 5.3. Collective.
///
/// # Errors
/// [`Error::Collective`](crate::Error::Collective).
pub(super) fn watch(local: &dyn Collective) -> Result<Vec<WatchedRank>> {
    let own = identity(std::process::id() as i32);
    let mine: Vec<u8> = own.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let mut all = vec![0; mine.len() * local.size()];
    local.all_gather(&mine, &mut all)?;
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("a word has 8 bytes"));
    let words: Vec<u64> = all.chunks_exact(size_of::<u64>()).map(word).collect();
    let ranks = words.chunks_exact(WORDS).enumerate().filter(|(rank, _)| *rank != local.rank());
    Ok(ranks.filter_map(|(rank, theirs)| WatchedRank::open(rank as u64, theirs, own[2])).collect())
}

/// Returns the number of a process, its start time, and the PID namespace of this process, which is
/// 0 if it is unknown.
pub(super) fn identity(pid: i32) -> [u64; WORDS] {
    let namespace = fs::metadata("/proc/self/ns/pid").map_or(0, |found| found.ino());
    [pid as u64, process::start_time(pid).unwrap_or(0), namespace]
}

impl WatchedRank {
    /// Opens the process of a rank with this [`identity`]. `own` is the PID namespace of this
    /// process.
    pub(super) fn open(local_rank: u64, identity: &[u64], own: u64) -> Option<WatchedRank> {
        let &[pid, started, namespace] = identity else { return None };
        if namespace == 0 || namespace != own || started == 0 {
            return None;
        }
        let pid = i32::try_from(pid).ok()?;
        let end = match process::pidfd(pid) {
            // Another process may have the number meanwhile.
            Ok(end) => (process::start_time(pid) == Some(started)).then_some(end),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => None,
            Err(_) => return None,
        };
        Some(WatchedRank { local_rank, pid, end })
    }
}
