//! The first record of a sender.

use super::fields::{check, number, part, put, seal};
use super::{InvalidRecord, ReadEndpoint, VERSION};

const MAGIC: [u8; 8] = *b"hbmirror";

/// The first record of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SenderHello {
    /// The random number of the sender. It stays through all connections of the sender.
    pub(crate) session: u128,
    /// The number of the last frame whose answer the sender does not need any more.
    pub(crate) answered: u64,
    /// The sender's end of a connection for reads.
    pub(crate) reads: ReadEndpoint,
}

impl SenderHello {
    /// The size of the record in bytes.
    pub(crate) const SIZE: usize = 80;

    /// Encodes the record.
    pub(crate) fn encode(&self) -> [u8; SenderHello::SIZE] {
        let mut record = [0; SenderHello::SIZE];
        put(&mut record, 0, MAGIC);
        put(&mut record, 8, VERSION.to_le_bytes());
        put(&mut record, 16, self.session.to_le_bytes());
        put(&mut record, 32, self.answered.to_le_bytes());
        put(&mut record, 40, self.reads);
        seal(&mut record);
        record
    }

    /// Decodes the record.
    ///
    /// # Errors
    /// [`InvalidRecord`].
    pub(crate) fn decode(record: &[u8; SenderHello::SIZE]) -> Result<SenderHello, InvalidRecord> {
        let version = u32::from_le_bytes(part(record, 8));
        // A record of another version may have another size, so its hash is not looked at.
        if record.starts_with(&MAGIC) && version != VERSION {
            return Err(InvalidRecord::OtherVersion(version));
        }
        check(record, MAGIC)?;
        let session = u128::from_le_bytes(part(record, 16));
        Ok(SenderHello { session, answered: number(record, 32), reads: part(record, 40) })
    }
}
