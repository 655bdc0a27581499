//! Pages that have to be on one node. This code neither allocates nor locks.
//!
//! A worker prefers its node and is not bound to it: for a bound process, a node without a free
//! page is a reason to call the OOM killer, which may end other processes as well
//! (`memory.oom.group`), or the host (`vm.panic_on_oom`). Pages that the kernel took from another
//! node are moved. For that the kernel also reclaims memory of the node, and reports ENOMEM if
//! there is none.

use std::io;

use hostbuf_os::NodeId;
use hostbuf_os::mempolicy::{move_to_nodes, page_node, page_nodes};

use crate::populate::view::FileView;

/// The number of pages of one system call.
const BATCH: usize = 512;
/// The number of attempts to move a page that the kernel uses at the moment.
const ATTEMPTS: usize = 10;
/// The node of a page that the kernel has not reported.
const UNKNOWN: i32 = -libc::ENOENT;

/// The reason why a page is not on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Misplaced {
    /// The kernel has refused to look pages up, with this errno: `EPERM` if a filter forbids it.
    Query(i32),
    /// The kernel has refused to move pages, with this errno: `EPERM` if a filter forbids it.
    Move(i32),
    /// The node has no free memory.
    NodeFull,
    /// The page at this offset in the view is on another node, and stays there.
    Elsewhere { offset: u64, node: i32 },
}

/// Looks up the pages at the offsets `pages` of `view`, which are allocated, and moves those to
/// `node` that are not there. Returns whether it has moved any. Pages of a pool are not moved,
/// since the kernel would allocate others for them.
pub(super) fn place_pages(
    view: &FileView,
    mut pages: impl Iterator<Item = u64>,
    node: NodeId,
    pool: bool,
) -> Result<bool, Misplaced> {
    let mut has_moved = false;
    loop {
        let (mut offsets, mut count) = ([0; BATCH], 0);
        for offset in pages.by_ref().take(BATCH) {
            offsets[count] = offset;
            count += 1;
        }
        if count == 0 {
            return Ok(has_moved);
        }
        has_moved |= place_batch(view, &offsets[..count], node, pool)?;
    }
}

/// Places at most [`BATCH`] pages. Returns whether it has moved any.
fn place_batch(view: &FileView, offsets: &[u64], node: NodeId, pool: bool) -> Result<bool, Misplaced> {
    let node = node.0 as i32;
    let mut attempts = 0;
    loop {
        let (mut addresses, mut nodes) = ([0; BATCH], [0; BATCH]);
        let (addresses, nodes) = (&mut addresses[..offsets.len()], &mut nodes[..offsets.len()]);
        for (address, &offset) in addresses.iter_mut().zip(offsets) {
            // The kernel looks pages up in the page table, from which collapsing removes them.
            *address = view.touch(offset);
        }
        look_up(addresses, nodes)?;
        let Some(first) = nodes.iter().position(|&on| on != node) else { return Ok(attempts > 0) };
        if pool || attempts == ATTEMPTS {
            return Err(Misplaced::Elsewhere { offset: offsets[first], node: nodes[first] });
        }
        attempts += 1;
        let mut count = 0;
        for i in first..addresses.len() {
            if nodes[i] != node {
                addresses[count] = addresses[i];
                count += 1;
            }
        }
        match move_to_nodes(&addresses[..count], &[node; BATCH][..count], &mut nodes[..count]) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => return Err(Misplaced::NodeFull),
            Err(error) => return Err(Misplaced::Move(os_errno(&error))),
        }
    }
}

/// Looks up the nodes of the pages at `addresses`.
fn look_up(addresses: &[usize], nodes: &mut [i32]) -> Result<(), Misplaced> {
    match page_nodes(addresses, nodes).map_err(|error| os_errno(&error)) {
        Ok(()) => {}
        // The filters of Docker and Podman forbid move_pages whatever the capabilities are.
        Err(libc::EPERM | libc::ENOSYS) => nodes.fill(UNKNOWN),
        Err(errno) => return Err(Misplaced::Query(errno)),
    }
    for (node, &address) in nodes.iter_mut().zip(addresses) {
        // Some kernels do not report large huge pages in a list.
        if *node < 0 {
            *node = page_node(address).map_err(|error| Misplaced::Query(os_errno(&error)))?;
        }
    }
    Ok(())
}

fn os_errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call_filter::{Refusal, refusing};
    use crate::memfd::{self, Backing};
    use crate::pages::Pages;
    use hostbuf_os::memory;
    use std::os::fd::AsRawFd;

    /// The default filters of Docker and Podman never allow `move_pages`.
    #[test]
    fn only_a_page_elsewhere_needs_move_pages() {
        let page = memory::page_size();
        let fd = memfd::create("hostbuf-test", 3 * page, Backing::Shmem).unwrap();
        let view = FileView::map(fd.as_raw_fd(), 0, 3 * page, Pages::Small).unwrap();
        let pages = || (0..3).map(|number| number * page);
        let node = page_node(view.touch(0)).map_err(|error| os_errno(&error));
        let on = match node {
            Ok(node) => NodeId(node as u32),
            // Containers may forbid this call too, and a kernel without NUMA does not have it.
            Err(errno @ (libc::EPERM | libc::ENOSYS)) => {
                let placed = place_pages(&view, pages(), NodeId(0), false);
                return assert!(placed == Ok(false) || placed == Err(Misplaced::Query(errno)), "{placed:?}");
            }
            Err(errno) => panic!("errno {errno}"),
        };
        for errno in [libc::EPERM, libc::ENOSYS] {
            let moves = [Refusal { call: libc::SYS_move_pages, only_for: None, errno }];
            let place = |node| refusing(&moves, || place_pages(&view, pages(), node, false));
            assert_eq!(place(on), Ok(false));
            assert_eq!(place(NodeId(on.0 + 1)), Err(Misplaced::Move(errno)));
        }
    }
}
