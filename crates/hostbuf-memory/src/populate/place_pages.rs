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
const BATCH: usize = 256;
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

/// Looks up the pages of a part of `view`, one every `step` bytes, and moves those to `node` that
/// are not there. Pages of a pool are not moved, since the kernel would allocate others for them.
pub(super) fn place_pages(
    view: &FileView,
    from: u64,
    length: u64,
    step: u64,
    node: NodeId,
    pool: bool,
) -> Result<(), Misplaced> {
    for batch in (from..from + length).step_by(BATCH * step as usize) {
        let mut attempts = 0;
        loop {
            let (mut addresses, mut count, mut first) = ([0; BATCH], 0, None);
            elsewhere(
                view,
                batch,
                (from + length).min(batch + BATCH as u64 * step),
                step,
                node,
                |at, found| {
                    addresses[count] = view.touch(at);
                    count += 1;
                    first = first.or(Some((at, found)));
                },
            )?;
            let Some((offset, found)) = first else { break };
            if pool || attempts == ATTEMPTS {
                return Err(Misplaced::Elsewhere { offset, node: found });
            }
            attempts += 1;
            let (to, mut state) = ([node.0 as i32; BATCH], [0; BATCH]);
            match move_to_nodes(&addresses[..count], &to[..count], &mut state[..count]) {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => return Err(Misplaced::NodeFull),
                Err(error) => return Err(Misplaced::Move(os_errno(&error))),
            }
        }
    }
    Ok(())
}

/// Passes each page in `from..to` that is not on `node` to `found`, with the node on which it is.
fn elsewhere(
    view: &FileView,
    from: u64,
    to: u64,
    step: u64,
    node: NodeId,
    mut found: impl FnMut(u64, i32),
) -> Result<(), Misplaced> {
    let (mut addresses, mut nodes, mut count) = ([0; BATCH], [0; BATCH], 0);
    for at in (from..to).step_by(step as usize) {
        // The kernel looks pages up in the page table, from which collapsing removes them.
        addresses[count] = view.touch(at);
        count += 1;
    }
    let query = |error: io::Error| Misplaced::Query(os_errno(&error));
    match page_nodes(&addresses[..count], &mut nodes[..count]).map_err(|error| os_errno(&error)) {
        Ok(()) => {}
        // The filters of Docker and Podman forbid move_pages whatever the capabilities are.
        Err(libc::EPERM | libc::ENOSYS) => nodes[..count].fill(UNKNOWN),
        Err(errno) => return Err(Misplaced::Query(errno)),
    }
    for (i, &on) in nodes[..count].iter().enumerate() {
        // Some kernels do not report large huge pages in a list.
        let on = if on < 0 { page_node(addresses[i]).map_err(query)? } else { on };
        if on != node.0 as i32 {
            found(from + i as u64 * step, on);
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
        let node = page_node(view.touch(0)).map_err(|error| os_errno(&error));
        let on = match node {
            Ok(node) => NodeId(node as u32),
            // Containers may forbid this call too, and a kernel without NUMA does not have it.
            Err(errno @ (libc::EPERM | libc::ENOSYS)) => {
                let placed = place_pages(&view, 0, 3 * page, page, NodeId(0), false);
                return assert!(placed == Ok(()) || placed == Err(Misplaced::Query(errno)), "{placed:?}");
            }
            Err(errno) => panic!("errno {errno}"),
        };
        for errno in [libc::EPERM, libc::ENOSYS] {
            let moves = [Refusal { call: libc::SYS_move_pages, only_for: None, errno }];
            let place = |node| refusing(&moves, || place_pages(&view, 0, page, page, node, false));
            assert_eq!(place(on), Ok(()));
            assert_eq!(place(NodeId(on.0 + 1)), Err(Misplaced::Move(errno)));
        }
    }
}
