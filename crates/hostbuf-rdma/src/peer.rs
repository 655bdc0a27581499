//! Peers of an endpoint.

use hostbuf::job::HostIndex;

/// The index of a peer among the endpoints that were connected together: of a host in a fabric, of
/// a rank in channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeerIndex(pub(crate) usize);

impl From<HostIndex> for PeerIndex {
    fn from(host: HostIndex) -> PeerIndex {
        PeerIndex(host.0)
    }
}
