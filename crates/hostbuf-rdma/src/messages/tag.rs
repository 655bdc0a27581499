//! Tags of channels.

use std::fmt;

/// The tag of a channel, which distinguishes the channels between the same two ranks.
///
/// A request of [`Channel::connect`](crate::Channel::connect) has a process and a tag. Exchanging
/// them
/// does not compile:
///
/// ```
/// # use hostbuf_rdma::{Channel, ChannelOptions, PeerId, Tag};
/// # let connect = |group: &hostbuf::job::Solo| {
/// Channel::connect(group, &[(PeerId(1), Tag(7))], ChannelOptions::default())
/// # };
/// ```
///
/// ```compile_fail
/// # use hostbuf_rdma::{Channel, ChannelOptions, PeerId, Tag};
/// # let connect = |group: &hostbuf::job::Solo| {
/// Channel::connect(group, &[(Tag(7), PeerId(1))], ChannelOptions::default())
/// # };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
// Exhaustive: a number, and nothing else.
pub struct Tag(pub u32);

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
