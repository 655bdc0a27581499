//! The address of one end of a connection for reads.

use crate::verbs::gid::Gid;
use crate::verbs::queue_pair::QueuePairInfo;

/// The address of one end of a connection for reads, which the other end needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadAddress(pub(crate) QueuePairInfo);

impl ReadAddress {
    /// The number of bytes of an encoded address.
    pub const SIZE: usize = 28;

    /// Encodes the address. An encoded address is never all zeros.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ReadAddress::SIZE] {
        let QueuePairInfo { gid, number, first_packet, mtu } = self.0;
        let mut bytes = [0; ReadAddress::SIZE];
        bytes[..16].copy_from_slice(gid.as_bytes());
        bytes[16..20].copy_from_slice(&number.to_le_bytes());
        bytes[20..24].copy_from_slice(&first_packet.to_le_bytes());
        bytes[24..].copy_from_slice(&mtu.to_le_bytes());
        bytes
    }

    /// Decodes an address. Returns `None` for bytes that are none.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; ReadAddress::SIZE]) -> Option<ReadAddress> {
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let gid = Gid::from_bytes(bytes[..16].try_into().expect("16 bytes"));
        let info = QueuePairInfo { gid, number: u32_at(16), first_packet: u32_at(20), mtu: u32_at(24) };
        let is_valid = gid != Gid::UNSPECIFIED
            && info.number < 1 << 24
            && info.first_packet < 1 << 24
            && (1..=5).contains(&info.mtu);
        is_valid.then_some(ReadAddress(info))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_wire_and_garbage_is_none() {
        let gid = Gid::from_bytes([7; 16]);
        let address = ReadAddress(QueuePairInfo { gid, number: 17, first_packet: 0xff_ffff, mtu: 3 });
        let bytes = address.to_bytes();
        assert_eq!(ReadAddress::from_bytes(&bytes), Some(address));
        assert_eq!(ReadAddress::from_bytes(&[0; ReadAddress::SIZE]), None);
        assert_eq!(ReadAddress::from_bytes(&[255; ReadAddress::SIZE]), None);
        for at in [19, 23, 24] {
            let mut other = bytes;
            other[at] = 6;
            assert_eq!(ReadAddress::from_bytes(&other), None, "byte {at}");
        }
    }
}
