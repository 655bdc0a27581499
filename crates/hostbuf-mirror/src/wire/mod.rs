//! The records of the protocol.
//!
//! All records have fixed sizes, numbers in little-endian order, and end with the XXH3 hash of the
//! bytes before. A connection begins with one hello of each side. Then the sender sends frames,
//! each a request and, unless the receiver reads them by RDMA, the bytes of the content. The
//! receiver answers each frame, in order.

mod fields;
mod frame_answer;
mod frame_request;
mod receiver_hello;
mod sender_hello;

pub(crate) use frame_answer::{AnswerKind, FrameAnswer};
pub(crate) use frame_request::{FrameRequest, FrameSource};
pub(crate) use receiver_hello::{HelloStatus, ReceiverHello};
pub(crate) use sender_hello::SenderHello;

/// The version of the protocol.
pub(crate) const VERSION: u32 = 2;

/// The address of one end of a connection for reads by RDMA. It is all zeros if there is none.
pub(crate) type ReadEndpoint = [u8; 28];

/// The number of answers that a receiver keeps for a session, and thus the largest window.
pub(crate) const MAX_WINDOW: u32 = 64;

/// The reason why a record is not valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InvalidRecord {
    /// The bytes are not those of a mirror.
    NoRecord,
    /// The peer has this version of the protocol.
    OtherVersion(u32),
    /// The hash is wrong, or a number is out of range.
    Damaged(&'static str),
}

impl std::fmt::Display for InvalidRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            InvalidRecord::NoRecord => f.write_str("the program there is not a hostbuf mirror"),
            InvalidRecord::OtherVersion(version) => write!(
                f,
                "the mirror there has version {version} of the protocol, and this one version {VERSION}: use one version of hostbuf"
            ),
            InvalidRecord::Damaged(what) => write!(f, "the mirror there has broken the protocol: {what}"),
        }
    }
}
