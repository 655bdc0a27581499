//! The limits of the protocol.

use hostbuf_raw::syscall::MAX_DESCRIPTORS;

/// The largest number of candidates of one ballot.
pub const MAX_CANDIDATES: usize = 16;
/// The largest number of buffers of one job. The descriptors of all buffers travel in one packet,
/// together with those of the identity file and of the control file.
pub const MAX_BUFFERS: usize = 250;
/// The largest length of a buffer's name in bytes.
pub const NAME_MAX: usize = 31;
/// The largest number of bytes of a text for the user, in a frame and everywhere else, and of a
/// member's part of a gather operation.
pub const TEXT_MAX: usize = 1024;
/// The largest length of the value of [`ENV_REPORT`](crate::environment::ENV_REPORT), in bytes.
pub const REPORT_MAX: usize = 64;

const _: () = assert!(MAX_BUFFERS + 2 <= MAX_DESCRIPTORS);
const _: () = assert!(MAX_CANDIDATES <= u64::BITS as usize);
