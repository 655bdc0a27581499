//! The nodes of the pages of a range, from move_pages(2), and how many pages each node has.

#![allow(unsafe_code, reason = "calls move_pages, for which no crate has a function")]

use std::collections::BTreeMap;
use std::io;
use std::ptr::null;

/// The number of pages of a call, so that a large range does not need large lists.
const CHUNK: usize = 4096;

/// Returns the node of the page at every `page` bytes of a range of process `pid`, 0 for this one.
/// The node is `None` where that process has no page in its page table, even if the file that is
/// mapped there has one.
pub fn page_nodes(pid: i32, address: usize, length: usize, page: usize) -> io::Result<Vec<Option<u32>>> {
    let addresses: Vec<usize> = (address..address + length).step_by(page).collect();
    let mut nodes = Vec::with_capacity(addresses.len());
    for chunk in addresses.chunks(CHUNK) {
        let mut statuses = vec![i32::MIN; chunk.len()];
        // SAFETY: both lists have as many elements as the call says. Without a list of nodes it
        // moves nothing.
        let result = unsafe {
            let (addresses, statuses) = (chunk.as_ptr(), statuses.as_mut_ptr());
            libc::syscall(libc::SYS_move_pages, pid, chunk.len(), addresses, null::<i32>(), statuses, 0)
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        for status in statuses {
            nodes.push(match status {
                0.. => Some(status as u32),
                // Private memory that was never written reads as EFAULT.
                _ if [libc::ENOENT, libc::EFAULT].contains(&-status) => None,
                _ => return Err(io::Error::from_raw_os_error(-status)),
            });
        }
    }
    Ok(nodes)
}

/// Returns the number of pages of each node; those without one are under `None`.
pub fn count_by_node(nodes: &[Option<u32>]) -> BTreeMap<Option<u32>, usize> {
    let mut counts = BTreeMap::new();
    for &node in nodes {
        *counts.entry(node).or_default() += 1;
    }
    counts
}

/// Returns the counts in one line: "node 0: 3, node 2: 1, none: 4".
pub fn describe(counts: &BTreeMap<Option<u32>, usize>) -> String {
    let name = |node: &Option<u32>| node.map_or("none".into(), |node| format!("node {node}"));
    // `None` is the smallest key.
    let (absent, present): (Vec<_>, Vec<_>) = counts.iter().partition(|(node, _)| node.is_none());
    let parts = present.iter().chain(&absent).map(|(node, count)| format!("{}: {count}", name(node)));
    parts.collect::<Vec<_>>().join(", ")
}
