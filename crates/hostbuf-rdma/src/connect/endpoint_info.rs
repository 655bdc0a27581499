//! The information that endpoints exchange before the first connection.

use std::time::Instant;

use crate::error::Result;
use crate::job::Collective;
use crate::rdma::verbs::datagram::DatagramAddress;
use crate::rdma::verbs::gid::Gid;
use crate::rdma::verbs::work_request::RemoteSegment;

/// A random number by which endpoints that have exchanged their information recognise each other's
/// connect messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupId(pub(crate) u64);

/// The information about an endpoint that its peers need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndpointInfo {
    /// The destination of connect messages.
    pub(crate) address: DatagramAddress,
    /// The memory that peers may access.
    pub(crate) memory: RemoteSegment,
    /// The random number of this endpoint. All use the number of the first one.
    pub(crate) group: GroupId,
}

impl EndpointInfo {
    const SIZE: usize = 40;

    pub(crate) fn new(address: DatagramAddress, memory: RemoteSegment) -> EndpointInfo {
        EndpointInfo { address, memory, group: GroupId(random()) }
    }

    /// Returns the information of all endpoints of `group`. Collective.
    ///
    /// # Errors
    /// [`Error::Collective`](crate::Error::Collective).
    pub(crate) fn exchange(self, group: &dyn Collective) -> Result<Vec<EndpointInfo>> {
        let mut all = vec![0; EndpointInfo::SIZE * group.size()];
        group.all_gather(&self.encode(), &mut all)?;
        let (records, _) = all.as_chunks::<{ EndpointInfo::SIZE }>();
        Ok(records.iter().map(EndpointInfo::decode).collect())
    }

    fn encode(&self) -> [u8; EndpointInfo::SIZE] {
        let mut bytes = [0; EndpointInfo::SIZE];
        bytes[..16].copy_from_slice(self.address.gid.as_bytes());
        bytes[16..20].copy_from_slice(&self.address.queue_pair.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.memory.rkey.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.memory.address.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.group.0.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; EndpointInfo::SIZE]) -> EndpointInfo {
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let gid = Gid::from_bytes(bytes[..16].try_into().expect("16 bytes"));
        EndpointInfo {
            address: DatagramAddress { gid, queue_pair: u32_at(16) },
            memory: RemoteSegment { rkey: u32_at(20), address: u64_at(24) },
            group: GroupId(u64_at(32)),
        }
    }
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    let read =
        std::fs::File::open("/dev/urandom").and_then(|mut f| std::io::Read::read_exact(&mut f, &mut bytes));
    match read {
        Ok(()) => u64::from_le_bytes(bytes),
        // The number only has to differ from that of another job on the same network.
        Err(_) => u64::from(std::process::id()) << 32 ^ Instant::now().elapsed().as_nanos() as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_reverses_encoding() {
        let info = EndpointInfo {
            address: DatagramAddress { gid: Gid::from_bytes([3; 16]), queue_pair: 0x0102_0304 },
            memory: RemoteSegment { address: 1 << 46, rkey: 7 },
            group: GroupId(u64::MAX - 1),
        };
        assert_eq!(EndpointInfo::decode(&info.encode()), info);
    }
}
