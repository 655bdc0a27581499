//! Verification of the nodes of pages. This code neither allocates nor locks.

use hostbuf_os::NodeId;
use hostbuf_os::mempolicy::{page_node, page_nodes};

use crate::populate::view::FileView;

/// The number of pages of one query.
const BATCH: usize = 256;

/// Returns the first page of a part of `view` that is not on `node`, with its offset in the view
/// and its node. `page` is the size of the pages of the part.
///
/// # Errors
/// The errno of the query: `EPERM` if a filter forbids it.
pub(super) fn first_elsewhere(
    view: &FileView,
    from: u64,
    length: u64,
    page: u64,
    node: NodeId,
) -> Result<Option<(u64, i32)>, i32> {
    let (mut addresses, mut nodes) = ([0; BATCH], [0; BATCH]);
    for batch in (from..from + length).step_by(BATCH * page as usize) {
        let mut count = 0;
        for at in (batch..from + length).step_by(page as usize).take(BATCH) {
            // The kernel looks pages up in the page table, from which collapsing removes them.
            addresses[count] = view.touch(at);
            count += 1;
        }
        let os_errno = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        page_nodes(&addresses[..count], &mut nodes[..count]).map_err(os_errno)?;
        for (i, &found) in nodes[..count].iter().enumerate() {
            // Some kernels do not report large huge pages in a list.
            let found = if found < 0 { page_node(addresses[i]).map_err(os_errno)? } else { found };
            if found != node.0 as i32 {
                return Ok(Some((batch + i as u64 * page, found)));
            }
        }
    }
    Ok(None)
}
