//! The information that endpoints exchange before the first connection.

use std::time::Instant;

use crate::connect::bootstrap::{Bootstrap, exchange};
use crate::connect::bootstrap_error::{BootstrapError, RecordContent};
use crate::peer::PeerId;
use crate::verbs::datagram::DatagramAddress;
use crate::verbs::gid::Gid;
use crate::verbs::work_request::{RemoteKey, RemoteSegment};
use hostbuf::error::Result;
use hostbuf_os::process;

/// A random number by which endpoints that have exchanged their information recognise each other's
/// connect messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupId(pub(crate) u64);

/// The information about an endpoint that its peers need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EndpointInfo {
    /// The destination of connect messages.
    pub(crate) address: DatagramAddress,
    /// The memory that peers may access, and its length in bytes.
    pub(crate) memory: RemoteSegment,
    pub(crate) memory_bytes: u64,
    /// The random number of this endpoint. All use the number of the first one.
    pub(crate) group: GroupId,
    /// The name of the host, for errors.
    pub(crate) host: String,
}

/// The first bytes of a record, with the version of its format in the last one.
pub(crate) const MAGIC: [u8; 8] = *b"hbpeer\0\x01";
/// The number of bytes in front of the host name.
const FIXED: usize = 56;

impl EndpointInfo {
    pub(crate) fn new(address: DatagramAddress, memory: RemoteSegment, memory_bytes: usize) -> EndpointInfo {
        let (group, host) = (GroupId(random()), process::host_name());
        EndpointInfo { address, memory, memory_bytes: memory_bytes as u64, group, host }
    }

    /// Returns the information of all endpoints. All processes call it.
    ///
    /// # Errors
    /// As [`Bootstrap::exchange`]; [`BootstrapError::InvalidRecord`] for a record of another
    /// version of hostbuf.
    pub(crate) fn exchange(self, bootstrap: &dyn Bootstrap) -> Result<Vec<EndpointInfo>> {
        let records = exchange(bootstrap, &self.encode())?;
        let decode = |(index, record): (usize, &Vec<u8>)| {
            let (peer, expected) = (PeerId(index), RecordContent::Endpoint);
            EndpointInfo::decode(record)
                .ok_or_else(|| BootstrapError::InvalidRecord { peer, expected }.into())
        };
        records.iter().enumerate().map(decode).collect()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FIXED + self.host.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(self.address.gid.as_bytes());
        bytes.extend_from_slice(&self.address.queue_pair.to_le_bytes());
        bytes.extend_from_slice(&self.memory.rkey.0.to_le_bytes());
        bytes.extend_from_slice(&self.memory.address.to_le_bytes());
        bytes.extend_from_slice(&self.memory_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.group.0.to_le_bytes());
        bytes.extend_from_slice(self.host.as_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<EndpointInfo> {
        let (fixed, host) = bytes.split_at_checked(FIXED)?;
        if fixed[..8] != MAGIC {
            return None;
        }
        let u32_at = |at: usize| u32::from_le_bytes(fixed[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(fixed[at..at + 8].try_into().expect("8 bytes"));
        let gid = Gid::from_bytes(fixed[8..24].try_into().expect("16 bytes"));
        Some(EndpointInfo {
            address: DatagramAddress { gid, queue_pair: u32_at(24) },
            memory: RemoteSegment { rkey: RemoteKey(u32_at(28)), address: u64_at(32) },
            memory_bytes: u64_at(40),
            group: GroupId(u64_at(48)),
            host: String::from_utf8_lossy(host).into_owned(),
        })
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
    fn a_record_without_an_endpoint_is_an_error_with_its_process() {
        struct Other;

        impl Bootstrap for Other {
            fn index(&self) -> PeerId {
                PeerId(0)
            }

            fn count(&self) -> usize {
                2
            }

            fn exchange(&self, record: &[u8]) -> Result<Vec<Vec<u8>>> {
                Ok(vec![record.to_vec(), b"channel requests".to_vec()])
            }
        }

        let address = DatagramAddress { gid: Gid::UNSPECIFIED, queue_pair: 1 };
        let memory = RemoteSegment { address: 0, rkey: RemoteKey(0) };
        let error = EndpointInfo::new(address, memory, 0).exchange(&Other).unwrap_err();
        let reason = BootstrapError::downcast_ref(&error);
        let (wanted, expected) = (PeerId(1), RecordContent::Endpoint);
        assert!(
            matches!(reason, Some(BootstrapError::InvalidRecord { peer, expected: content })
                if (*peer, *content) == (wanted, expected)),
            "{error:?}"
        );
    }

    #[test]
    fn decoding_reverses_encoding_and_refuses_other_versions() {
        let info = EndpointInfo {
            address: DatagramAddress { gid: Gid::from_bytes([3; 16]), queue_pair: 0x0102_0304 },
            memory: RemoteSegment { address: 1 << 46, rkey: RemoteKey(7) },
            memory_bytes: 1 << 33,
            group: GroupId(u64::MAX - 1),
            host: "node17".into(),
        };
        let bytes = info.encode();
        assert_eq!(EndpointInfo::decode(&bytes), Some(info));
        assert_eq!(EndpointInfo::decode(&bytes[..FIXED - 1]), None);
        for at in 0..MAGIC.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_eq!(EndpointInfo::decode(&other), None, "byte {at}");
        }
    }
}
