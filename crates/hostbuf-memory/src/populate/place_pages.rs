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

/// The reason why a page is not on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Misplaced {
    /// The kernel has refused to look up or to move pages: `EPERM` if a filter forbids it.
    Refused(i32),
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
                Err(error) => return Err(refused(error)),
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
    page_nodes(&addresses[..count], &mut nodes[..count]).map_err(refused)?;
    for (i, &on) in nodes[..count].iter().enumerate() {
        // Some kernels do not report large huge pages in a list.
        let on = if on < 0 { page_node(addresses[i]).map_err(refused)? } else { on };
        if on != node.0 as i32 {
            found(from + i as u64 * step, on);
        }
    }
    Ok(())
}

fn refused(error: io::Error) -> Misplaced {
    Misplaced::Refused(error.raw_os_error().unwrap_or(libc::EIO))
}
