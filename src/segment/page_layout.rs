//! The places of the control page's parts, in bytes from its beginning.
//!
//! ```text
//! 0          STATES                        LEDGER                                  CONTROL_LENGTH
//! | identity | state of buffer 0 | 1 | ... | rows of registrations ...             |
//! ```

use hostbuf_protocol::wire::MAX_BUFFERS;

/// The length of the control page, which is several of the machine's pages: identity, states, and
/// room to list the registrations of a host with many ranks.
pub const CONTROL_LENGTH: u64 = 16384;
/// The beginning of the mutable part, on a cache line of its own.
pub(super) const STATES: usize = 4096;
/// The length of a buffer's state.
pub(super) const STATE_LENGTH: usize = 64;
/// The beginning of the table of registrations, which goes on to the end of the page.
pub(super) const LEDGER: usize = STATES + MAX_BUFFERS * STATE_LENGTH;
/// The length of a row of the table.
pub(super) const ROW_LENGTH: usize = 64;
const _: () = assert!(LEDGER < CONTROL_LENGTH as usize);
