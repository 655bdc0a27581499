//! What processes tell each other of themselves before the first connection.

use std::time::Instant;

use crate::error::Result;
use crate::job::Collective;
use crate::rdma::connect::connections::Parts;

/// See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    pub(crate) port: [u8; 16],
    /// Where letters go.
    pub(crate) pair: u32,
    /// Its key for the memory that others may use, and where that is.
    pub(crate) key: u32,
    pub(crate) at: u64,
    /// A number that nobody else has; all take the first one's.
    pub(crate) number: u64,
}

impl Card {
    const SIZE: usize = 40;

    /// The cards of all of `group`. Collective.
    ///
    /// # Errors
    /// Those of the collective.
    pub(crate) fn exchange(group: &dyn Collective, parts: &Parts, key: u32, at: usize) -> Result<Vec<Card>> {
        let (port, pair) = (parts.port.address, parts.mail.number());
        let card = Card { port, pair, key, at: at as u64, number: random() };
        let mut all = vec![0; Card::SIZE * group.size()];
        group.all_gather(&card.write(), &mut all)?;
        Ok(all.chunks_exact(Card::SIZE).map(Card::read).collect())
    }

    fn write(&self) -> [u8; Card::SIZE] {
        let mut bytes = [0; Card::SIZE];
        bytes[..16].copy_from_slice(&self.port);
        bytes[16..20].copy_from_slice(&self.pair.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.key.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.at.to_le_bytes());
        bytes[32..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    fn read(bytes: &[u8]) -> Card {
        let short = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let port = bytes[..16].try_into().expect("sixteen bytes");
        Card { port, pair: short(16), key: short(20), at: long(24), number: long(32) }
    }
}

/// A number that nobody else has.
fn random() -> u64 {
    let mut bytes = [0; 8];
    // Without it two jobs could take each other's letters for their own; the clock and the number of the process do as well.
    let read =
        std::fs::File::open("/dev/urandom").and_then(|mut f| std::io::Read::read_exact(&mut f, &mut bytes));
    match read {
        Ok(()) => u64::from_le_bytes(bytes),
        Err(_) => u64::from(std::process::id()) << 32 ^ Instant::now().elapsed().as_nanos() as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_read_as_they_were_written() {
        let card = Card { port: [3; 16], pair: 0x0102_0304, key: 7, at: 1 << 46, number: u64::MAX - 1 };
        assert_eq!(Card::read(&card.write()), card);
    }
}
