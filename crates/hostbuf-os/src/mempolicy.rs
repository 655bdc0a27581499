//! The NUMA memory policy of the calling thread, and the nodes of its pages.
//!
//! The functions that a forked child calls neither allocate nor lock.

#![allow(unsafe_code, reason = "system calls get masks and arrays by address")]

use std::io;

use crate::node_id::NodeId;

/// The number of nodes that a mask can contain: `MAX_NUMNODES` of the largest configurations.
const MASK_NODES: usize = 1024;
const MASK_WORDS: usize = MASK_NODES / 64;

/// A set of NUMA nodes, in the form in which system calls expect it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeMask([u64; MASK_WORDS]);

impl NodeMask {
    /// Makes the set of these nodes.
    ///
    /// # Errors
    /// `EINVAL` for a node that no kernel has.
    pub fn new(nodes: impl IntoIterator<Item = NodeId>) -> io::Result<NodeMask> {
        let mut mask = NodeMask::default();
        for NodeId(node) in nodes {
            let word = mask.0.get_mut(node as usize / 64);
            *word.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))? |= 1 << (node % 64);
        }
        Ok(mask)
    }
}

/// The nodes from which the kernel takes new pages of the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryPolicy {
    /// The node of the thread first, then the others by distance.
    Default,
    /// These nodes only. If they have no free page, the OOM killer ends a process.
    Bind(NodeMask),
    /// The lowest of these nodes first, then the others by distance.
    Preferred(NodeMask),
}

impl MemoryPolicy {
    /// Sets the policy of the calling thread, which its children and new threads inherit.
    ///
    /// # Errors
    /// As `set_mempolicy(2)`: `EINVAL` for a node that does not exist or that the cpuset of this
    /// process excludes; `EPERM` if a filter forbids the call, as in many containers; `ENOSYS` of a
    /// kernel without NUMA.
    #[doc(alias = "set_mempolicy")]
    pub fn apply(&self) -> io::Result<()> {
        let (mode, mask) = match self {
            MemoryPolicy::Default => (libc::MPOL_DEFAULT, None),
            MemoryPolicy::Bind(mask) => (libc::MPOL_BIND, Some(mask)),
            MemoryPolicy::Preferred(mask) => (libc::MPOL_PREFERRED, Some(mask)),
        };
        let (words, bits) = mask.map_or((std::ptr::null(), 0), |mask| (mask.0.as_ptr(), MASK_NODES + 1));
        // SAFETY: reads MASK_NODES bits at `words`, which the mask has; the kernel expects one bit
        // more than the number of bits.
        let result = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, words, bits) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// Lets the kernel prefer `nodes` for new pages of a range of a shared file mapping. The policy is
/// kept with the file, for all processes, and automatic NUMA balancing leaves the pages of the
/// range where they are. It moves no page.
///
/// # Errors
/// As `mbind(2)`: `EFAULT` for a range that is not mapped; `EPERM` if a filter forbids the call.
#[doc(alias = "mbind")]
pub fn prefer_for_range(address: usize, length: usize, nodes: &NodeMask) -> io::Result<()> {
    // MPOL_PREFERRED_MANY of linux/mempolicy.h.
    const PREFERRED_MANY: i32 = 5;
    let one = nodes.0.iter().map(|word| word.count_ones()).sum::<u32>() == 1;
    if one {
        return set_for_range(address, length, libc::MPOL_PREFERRED, nodes);
    }
    match set_for_range(address, length, PREFERRED_MANY, nodes) {
        // Linux before 5.15 does not have that policy. Interleaving also prefers the nodes only.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            set_for_range(address, length, libc::MPOL_INTERLEAVE, nodes)
        }
        set => set,
    }
}

/// Lets the kernel take new pages of a range from `nodes` only. A page of a pool that they do not
/// have is an error; for an ordinary page the OOM killer ends a process. The policy of a file of
/// huge pages is that of the mapping, and other processes do not have it.
///
/// # Errors
/// As `mbind(2)`: `EFAULT` for a range that is not mapped; `EPERM` if a filter forbids the call.
#[doc(alias = "mbind")]
pub fn bind_range(address: usize, length: usize, nodes: &NodeMask) -> io::Result<()> {
    set_for_range(address, length, libc::MPOL_BIND, nodes)
}

/// Sets the policy of a range. It moves no page.
fn set_for_range(address: usize, length: usize, mode: i32, nodes: &NodeMask) -> io::Result<()> {
    // SAFETY: reads MASK_NODES bits of the mask; the policy of a range does not change its
    // contents.
    let result =
        unsafe { libc::syscall(libc::SYS_mbind, address, length, mode, nodes.0.as_ptr(), MASK_NODES + 1, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Looks up the nodes of the pages at `addresses`. `nodes[i]` becomes the node of the page at
/// `addresses[i]`, or a negative errno: `-ENOENT` for a page that this process has not mapped.
///
/// # Errors
/// As `move_pages(2)`: `EPERM` if a filter forbids the call, as in many containers; `ENOSYS` of a
/// kernel without NUMA.
///
/// # Panics
/// If the slices have different lengths.
#[doc(alias = "move_pages")]
pub fn page_nodes(addresses: &[usize], nodes: &mut [i32]) -> io::Result<()> {
    assert_eq!(addresses.len(), nodes.len());
    move_pages(addresses, std::ptr::null(), nodes, 0)
}

/// Moves the pages at `addresses`, which no other process has mapped, to the nodes in `to`. Unlike
/// an allocation, it does not call the OOM killer for a node that is full. A page that the kernel
/// uses at the moment stays where it is, so the caller looks up the nodes afterwards. `state` is
/// overwritten.
///
/// # Errors
/// As `move_pages(2)`: `ENOMEM` for a node that is full; `EACCES` for one that the cpuset of this
/// process excludes; `EPERM` if a filter forbids the call.
///
/// # Panics
/// If the slices have different lengths.
#[doc(alias = "move_pages")]
pub fn move_to_nodes(addresses: &[usize], to: &[i32], state: &mut [i32]) -> io::Result<()> {
    // MPOL_MF_MOVE of linux/mempolicy.h.
    const OWN_PAGES: i32 = 2;
    assert!(addresses.len() == to.len() && addresses.len() == state.len());
    move_pages(addresses, to.as_ptr(), state, OWN_PAGES)
}

/// Calls move_pages(2) for this process. `to` is null for a query, or as long as the slices.
fn move_pages(addresses: &[usize], to: *const i32, state: &mut [i32], flags: i32) -> io::Result<()> {
    let own_process = 0;
    // SAFETY: the call reads the addresses, and as many nodes unless `to` is null, and writes as
    // many numbers. Moving a page does not change its contents.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            own_process,
            addresses.len(),
            addresses.as_ptr(),
            to,
            state.as_mut_ptr(),
            flags,
        )
    };
    if result >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the node of the page at `address`, which it allocates if there is none.
///
/// # Errors
/// As `get_mempolicy(2)`: `EFAULT` if nothing is mapped there; `EPERM` and `ENOSYS` as
/// [`page_nodes`].
#[doc(alias = "get_mempolicy")]
pub fn page_node(address: usize) -> io::Result<i32> {
    // MPOL_F_NODE and MPOL_F_ADDR of linux/mempolicy.h.
    const FLAGS: i32 = 1 | 2;
    let mut node = 0;
    let no_mask: *mut u64 = std::ptr::null_mut();
    // SAFETY: writes one number to `node`; the address is not accessed by this process.
    let result = unsafe { libc::syscall(libc::SYS_get_mempolicy, &raw mut node, no_mask, 0, address, FLAGS) };
    if result == 0 { Ok(node) } else { Err(io::Error::last_os_error()) }
}

/// Returns the NUMA nodes from which this process may take memory, in ascending order, or `None` if
/// the kernel does not report them.
#[must_use]
pub fn allowed_nodes() -> Option<Vec<NodeId>> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    parse_list(text.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"))?.trim())
}

/// Returns whether all memory of this process is on `node`: its cpuset has no other node, as on a
/// host with one.
#[must_use]
pub fn is_only_node(node: NodeId) -> bool {
    allowed_nodes().is_some_and(|allowed| allowed == [node])
}

/// Parses the kernel's syntax of a list of numbers: `0-3,8`.
fn parse_list(text: &str) -> Option<Vec<NodeId>> {
    let mut list = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        (last < MASK_NODES as u32).then(|| list.extend((first..=last).map(NodeId)))?;
    }
    Some(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_nodes_are_parsed() {
        assert_eq!(parse_list("0-2,5"), Some([0, 1, 2, 5].map(NodeId).to_vec()));
        assert_eq!(parse_list(""), Some(vec![]));
        for wrong in ["x", "1-", "0-99999999", "-1"] {
            assert_eq!(parse_list(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_page_is_on_the_node_to_which_its_thread_is_bound() {
        // Containers may forbid the calls, and a kernel without NUMA does not have them.
        let refused = |e: &io::Error| {
            matches!(e.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)).then(|| eprintln!("skipped: {e}"))
        };
        let node = *allowed_nodes().expect("/proc is mounted").last().expect("a process has a node");
        std::thread::spawn(move || {
            let mask = NodeMask::new([node]).unwrap();
            let bound = MemoryPolicy::Bind(mask).apply();
            if bound.as_ref().is_err_and(|e| refused(e).is_some()) {
                return;
            }
            bound.unwrap();
            let page = vec![1u8; 1 << 20];
            let unmapped = 4096;
            let mut nodes = [0; 2];
            page_nodes(&[page.as_ptr() as usize + (1 << 19), unmapped], &mut nodes).unwrap();
            assert!(nodes[0] == node.0 as i32 && nodes[1] < 0, "{nodes:?}");
            assert_eq!(page_node(page.as_ptr() as usize).unwrap(), node.0 as i32);
            assert!(page_node(unmapped).is_err());
            // The page is there already.
            move_to_nodes(&[page.as_ptr() as usize], &[node.0 as i32], &mut [0]).unwrap();
            let absent = MASK_NODES as i32 - 1;
            assert!(move_to_nodes(&[page.as_ptr() as usize], &[absent], &mut [0]).is_err());
            MemoryPolicy::Preferred(mask).apply().unwrap();
            MemoryPolicy::Default.apply().unwrap();
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_node_that_does_not_exist_is_refused() {
        assert!(NodeMask::new([NodeId(MASK_NODES as u32)]).is_err());
        let missing = NodeMask::new([NodeId(MASK_NODES as u32 - 1)]).unwrap();
        std::thread::spawn(move || assert!(MemoryPolicy::Bind(missing).apply().is_err())).join().unwrap();
    }
}
