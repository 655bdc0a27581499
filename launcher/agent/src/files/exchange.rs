//! The windows of a file that the hosts send to each other.

#![allow(unsafe_code, reason = "receives the bytes of other hosts by address")]

use hostbuf::job::Collective;
use hostbuf_memory::FileMapping;

use super::window_share::{WINDOW, WindowShare};

/// Sends the windows of a file that this host has read to the other hosts, and receives theirs.
/// `received` is called with the length of each window that has arrived. Collective.
///
/// # Errors
/// Those of the collective operation.
pub(super) fn exchange(
    group: &dyn Collective,
    mapping: &FileMapping,
    share: WindowShare,
    received: &mut dyn FnMut(u64),
) -> hostbuf::Result<()> {
    let bytes = mapping.len();
    for window in 0..bytes.div_ceil(WINDOW) {
        let start = window * WINDOW;
        let length = (bytes - start).min(WINDOW);
        let host = share.host_of(window) as usize;
        // SAFETY: within the mapping, whose pages exist. No other thread accesses it: those that
        // have read have ended, and no other process has the file yet.
        let memory = unsafe {
            let at = (mapping.start() + start as usize) as *mut u8;
            std::slice::from_raw_parts_mut(at, length as usize)
        };
        group.broadcast(memory, host)?;
        if host != group.rank() {
            received(length);
        }
    }
    Ok(())
}
