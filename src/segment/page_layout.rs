//! The offsets of the control page's parts, in bytes.
//!
//! ```text
//! 0          STATES                        LEDGER                                  CONTROL_LENGTH
//! | identity | state of buffer 0 | 1 | ... | rows of registrations ...             |
//! ```

use hostbuf_protocol::wire::MAX_BUFFERS;

/// The length of the control page, which spans several pages of the machine: the identity, the
/// states, and a table for the registrations of a host with many ranks.
pub const CONTROL_LENGTH: u64 = 16384;
/// The offset of the mutable part, on a cache line of its own.
pub(super) const STATES: usize = 4096;
/// The length of a buffer's state.
pub(super) const STATE_LENGTH: usize = 64;
/// The offset of the table of registrations, which extends to the end of the page.
pub(super) const LEDGER: usize = STATES + MAX_BUFFERS * STATE_LENGTH;
/// The length of a row of the table.
pub(super) const ROW_LENGTH: usize = 64;
const _: () = assert!(LEDGER < CONTROL_LENGTH as usize);
