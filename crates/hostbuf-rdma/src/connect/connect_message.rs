//! Connect messages: datagrams, which may be lost, duplicated or forged.

use crate::connect::endpoint_info::GroupId;
use crate::verbs::gid::Gid;
use crate::verbs::queue_pair::QueuePairInfo;

/// A message by which a connection is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectMessage {
    pub(crate) group: GroupId,
    /// The index of the sender in its group.
    pub(crate) sender: u32,
    /// The number of the attempt. A reply has the number of its request.
    pub(crate) attempt: u64,
    pub(crate) body: ConnectBody,
}

/// The kind of a connect message, with its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectBody {
    /// Requests a queue pair that is connected to this one.
    Request(QueuePairInfo),
    /// Names the queue pair that is connected to the requester's.
    Reply(QueuePairInfo),
    /// Refuses the connection.
    Reject,
}

const MAGIC: u32 = 0x6862_6601;
const DIGEST_AT: usize = ConnectMessage::SIZE - 8;

impl ConnectMessage {
    /// The number of bytes of every message.
    pub(crate) const SIZE: usize = 64;

    pub(crate) fn encode(&self) -> [u8; ConnectMessage::SIZE] {
        let none = QueuePairInfo { gid: Gid::UNSPECIFIED, number: 0, first_packet: 0, mtu: 0 };
        let (kind, info) = match self.body {
            ConnectBody::Request(info) => (1u32, info),
            ConnectBody::Reply(info) => (2, info),
            ConnectBody::Reject => (3, none),
        };
        let mut bytes = [0; ConnectMessage::SIZE];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&MAGIC.to_le_bytes());
        put(&kind.to_le_bytes());
        put(&self.group.0.to_le_bytes());
        put(&self.attempt.to_le_bytes());
        put(&self.sender.to_le_bytes());
        put(&info.number.to_le_bytes());
        put(&info.first_packet.to_le_bytes());
        put(&info.mtu.to_le_bytes());
        put(info.gid.as_bytes());
        seal(&mut bytes);
        bytes
    }

    /// Decodes a message. Returns `None` for bytes that are no message.
    pub(crate) fn decode(bytes: &[u8]) -> Option<ConnectMessage> {
        let bytes: &[u8; ConnectMessage::SIZE] = bytes.try_into().ok()?;
        let (fields, digest) = bytes.split_at(DIGEST_AT);
        if xxhash_rust::xxh3::xxh3_64(fields).to_le_bytes() != digest {
            return None;
        }
        let u32_at = |at: usize| u32::from_le_bytes(fields[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(fields[at..at + 8].try_into().expect("8 bytes"));
        if u32_at(0) != MAGIC {
            return None;
        }
        let gid = Gid::from_bytes(fields[40..56].try_into().expect("16 bytes"));
        let info = QueuePairInfo { number: u32_at(28), first_packet: u32_at(32), mtu: u32_at(36), gid };
        let valid = info.number < 1 << 24 && info.first_packet < 1 << 24 && (1..=5).contains(&info.mtu);
        let body = match u32_at(4) {
            1 if valid => ConnectBody::Request(info),
            2 if valid => ConnectBody::Reply(info),
            3 => ConnectBody::Reject,
            _ => return None,
        };
        Some(ConnectMessage { group: GroupId(u64_at(8)), attempt: u64_at(16), sender: u32_at(24), body })
    }
}

/// Writes the checksum of the fields behind them.
fn seal(bytes: &mut [u8; ConnectMessage::SIZE]) {
    let digest = xxhash_rust::xxh3::xxh3_64(&bytes[..DIGEST_AT]);
    bytes[DIGEST_AT..].copy_from_slice(&digest.to_le_bytes());
}

/// Returns `fields`, cut or filled up with zeros, with the magic number and a valid checksum.
#[cfg(fuzzing)]
pub(crate) fn sealed(fields: &[u8]) -> [u8; ConnectMessage::SIZE] {
    let mut bytes = [0; ConnectMessage::SIZE];
    bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
    for (byte, field) in bytes[4..DIGEST_AT].iter_mut().zip(fields) {
        *byte = *field;
    }
    seal(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_reverses_encoding_and_refuses_other_bytes() {
        let gid = Gid::from_bytes([7; 16]);
        let info = QueuePairInfo { gid, number: 0x00ab_cdef, first_packet: 0x0012_3456, mtu: 3 };
        let group = GroupId(u64::MAX - 5);
        for body in [ConnectBody::Request(info), ConnectBody::Reply(info), ConnectBody::Reject] {
            let message = ConnectMessage { group, sender: 3, attempt: 9, body };
            let bytes = message.encode();
            assert_eq!(ConnectMessage::decode(&bytes), Some(message));
            for at in 0..ConnectMessage::SIZE {
                let mut changed = bytes;
                changed[at] ^= 1;
                assert_eq!(ConnectMessage::decode(&changed), None, "byte {at}");
            }
            assert_eq!(ConnectMessage::decode(&bytes[..ConnectMessage::SIZE - 1]), None);
        }
        let body = ConnectBody::Request(QueuePairInfo { mtu: 9, ..info });
        let invalid = ConnectMessage { group: GroupId(1), sender: 0, attempt: 0, body };
        assert_eq!(ConnectMessage::decode(&invalid.encode()), None);
    }
}
