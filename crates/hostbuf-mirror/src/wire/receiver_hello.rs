//! The first record of a receiver.

use super::fields::{check, number, part, put, seal};
use super::{InvalidRecord, MAX_WINDOW, ReadEndpoint, VERSION};

const MAGIC: [u8; 8] = *b"hbmirack";

/// The decision of a receiver about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HelloStatus {
    /// The receiver serves the connection.
    Accepted,
    /// The receiver has as many connections as it may have.
    Busy,
    /// The sender has another version of the protocol.
    OtherVersion,
}

/// The first record of a receiver. Behind it are the answers that the sender has missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceiverHello {
    /// The decision about the connection. The other fields have a meaning if it is accepted.
    pub(crate) status: HelloStatus,
    /// The number of answers behind this record.
    pub(crate) answers: u32,
    /// The random number of the receiver, which is another one after a restart.
    pub(crate) receiver: u128,
    /// The number of the last frame of the session that the receiver has answered.
    pub(crate) settled: u64,
    /// The largest length of a frame in bytes.
    pub(crate) most: u64,
    /// The receiver's end of a connection for reads, if the sender has one too.
    pub(crate) reads: ReadEndpoint,
}

impl ReceiverHello {
    /// The size of the record in bytes.
    pub(crate) const SIZE: usize = 88;

    /// Makes the record that refuses a connection.
    pub(crate) fn refusing(status: HelloStatus) -> ReceiverHello {
        ReceiverHello { status, answers: 0, receiver: 0, settled: 0, most: 0, reads: [0; 28] }
    }

    /// Encodes the record.
    pub(crate) fn encode(&self) -> [u8; ReceiverHello::SIZE] {
        let mut record = [0; ReceiverHello::SIZE];
        put(&mut record, 0, MAGIC);
        put(&mut record, 8, VERSION.to_le_bytes());
        put(&mut record, 12, [self.status as u8]);
        put(&mut record, 16, self.receiver.to_le_bytes());
        put(&mut record, 32, self.settled.to_le_bytes());
        put(&mut record, 40, self.most.to_le_bytes());
        put(&mut record, 48, self.answers.to_le_bytes());
        put(&mut record, 52, self.reads);
        seal(&mut record);
        record
    }

    /// Decodes the record.
    ///
    /// # Errors
    /// [`InvalidRecord`].
    pub(crate) fn decode(record: &[u8; ReceiverHello::SIZE]) -> Result<ReceiverHello, InvalidRecord> {
        let version = u32::from_le_bytes(part(record, 8));
        if record.starts_with(&MAGIC) && version != VERSION {
            return Err(InvalidRecord::OtherVersion(version));
        }
        check(record, MAGIC)?;
        let status = match record[12] {
            0 => HelloStatus::Accepted,
            1 => HelloStatus::Busy,
            2 => HelloStatus::OtherVersion,
            _ => return Err(InvalidRecord::Damaged("a hello has an unknown status")),
        };
        let answers = u32::from_le_bytes(part(record, 48));
        if answers > MAX_WINDOW {
            return Err(InvalidRecord::Damaged("a hello announces too many answers"));
        }
        Ok(ReceiverHello {
            status,
            answers,
            receiver: u128::from_le_bytes(part(record, 16)),
            settled: number(record, 32),
            most: number(record, 40),
            reads: part(record, 52),
        })
    }
}
