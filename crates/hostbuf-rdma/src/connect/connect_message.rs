//! What hosts write to each other before they are connected: datagrams, which may be lost, doubled or forged.

use crate::rdma::verbs::queue_pair::End;

/// One datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Letter {
    /// Which fabric it is about: a random number that its members agreed on.
    pub(crate) fabric: u64,
    /// Who wrote it: the host's index.
    pub(crate) from: u32,
    /// Which attempt to connect: the answer has the number of the question.
    pub(crate) attempt: u64,
    pub(crate) matter: Matter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Matter {
    /// Let this end be joined to one of yours.
    Ask(End),
    /// This one is joined to yours.
    Answer(End),
    /// There is no such host, or no room.
    Refuse,
}

const MAGIC: u32 = 0x6862_6601;

impl Letter {
    /// Bytes of every letter.
    pub(crate) const SIZE: usize = 64;

    pub(crate) fn write(&self) -> [u8; Letter::SIZE] {
        let (kind, end) = match self.matter {
            Matter::Ask(end) => (1u32, end),
            Matter::Answer(end) => (2, end),
            Matter::Refuse => (3, End { address: [0; 16], pair: 0, sequence: 0, mtu: 0 }),
        };
        let mut bytes = [0; Letter::SIZE];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        put(&MAGIC.to_le_bytes());
        put(&kind.to_le_bytes());
        put(&self.fabric.to_le_bytes());
        put(&self.attempt.to_le_bytes());
        put(&self.from.to_le_bytes());
        put(&end.pair.to_le_bytes());
        put(&end.sequence.to_le_bytes());
        put(&end.mtu.to_le_bytes());
        put(&end.address);
        let digest = xxhash_rust::xxh3::xxh3_64(&bytes[..Letter::SIZE - 8]);
        bytes[Letter::SIZE - 8..].copy_from_slice(&digest.to_le_bytes());
        bytes
    }

    /// `None` for what is none.
    pub(crate) fn read(bytes: &[u8]) -> Option<Letter> {
        let bytes: &[u8; Letter::SIZE] = bytes.try_into().ok()?;
        let (body, digest) = bytes.split_at(Letter::SIZE - 8);
        if xxhash_rust::xxh3::xxh3_64(body).to_le_bytes() != digest {
            return None;
        }
        let short = |at: usize| u32::from_le_bytes(body[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().expect("eight bytes"));
        if short(0) != MAGIC {
            return None;
        }
        let address = body[40..56].try_into().expect("sixteen bytes");
        let end = End { pair: short(28), sequence: short(32), mtu: short(36), address };
        let sensible = end.pair < 1 << 24 && end.sequence < 1 << 24 && (1..=5).contains(&end.mtu);
        let matter = match short(4) {
            1 if sensible => Matter::Ask(end),
            2 if sensible => Matter::Answer(end),
            3 => Matter::Refuse,
            _ => return None,
        };
        Some(Letter { fabric: long(8), attempt: long(16), from: short(24), matter })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_read_as_they_were_written_and_others_are_none() {
        let end = End { address: [7; 16], pair: 0x00ab_cdef, sequence: 0x0012_3456, mtu: 3 };
        for matter in [Matter::Ask(end), Matter::Answer(end), Matter::Refuse] {
            let letter = Letter { fabric: u64::MAX - 5, from: 3, attempt: 9, matter };
            let bytes = letter.write();
            assert_eq!(Letter::read(&bytes), Some(letter));
            for at in 0..Letter::SIZE {
                let mut other = bytes;
                other[at] ^= 1;
                assert_eq!(Letter::read(&other), None, "byte {at}");
            }
            assert_eq!(Letter::read(&bytes[..Letter::SIZE - 1]), None);
        }
        let strange = Letter { fabric: 1, from: 0, attempt: 0, matter: Matter::Ask(End { mtu: 9, ..end }) };
        assert_eq!(Letter::read(&strange.write()), None);
    }
}
