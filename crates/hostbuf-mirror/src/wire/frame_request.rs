//! The record in front of the bytes of a frame.

use std::time::Duration;

use hostbuf_pool::{BlockHeader, Token};

use super::InvalidRecord;
use super::fields::{check, number, part, put, seal};

const MAGIC: [u8; 8] = *b"hbmframe";

/// The record in front of the bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameRequest {
    /// The number of the frame in its session. Numbers rise, and may have gaps.
    pub(crate) number: u64,
    /// The time until the sender gives the frame up. The clocks of the hosts are not compared.
    pub(crate) time_left: Duration,
    /// The token of the frame on the host of the sender.
    pub(crate) token: Token,
    /// The header of the frame.
    pub(crate) header: BlockHeader,
    /// The place of the bytes.
    pub(crate) source: FrameSource,
}

/// The place of the bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameSource {
    /// They follow the request.
    Stream,
    /// The receiver reads them from the sender's memory.
    Memory { address: u64, remote_key: u32 },
}

const STREAM: u32 = 0;
const MEMORY: u32 = 1;

impl FrameRequest {
    /// The size of the record in bytes.
    pub(crate) const SIZE: usize = 352;

    /// Encodes the record.
    pub(crate) fn encode(&self) -> [u8; FrameRequest::SIZE] {
        let mut record = [0; FrameRequest::SIZE];
        let microseconds = u64::try_from(self.time_left.as_micros()).unwrap_or(u64::MAX);
        put(&mut record, 0, MAGIC);
        put(&mut record, 8, self.number.to_le_bytes());
        put(&mut record, 16, microseconds.to_le_bytes());
        put(&mut record, 24, self.token.to_bytes());
        put(&mut record, 72, self.header.encode());
        let (source, address, remote_key) = match self.source {
            FrameSource::Stream => (STREAM, 0, 0),
            FrameSource::Memory { address, remote_key } => (MEMORY, address, remote_key),
        };
        put(&mut record, 328, address.to_le_bytes());
        put(&mut record, 336, remote_key.to_le_bytes());
        put(&mut record, 340, source.to_le_bytes());
        seal(&mut record);
        record
    }

    /// Decodes the record of a frame of at most `most` bytes.
    ///
    /// # Errors
    /// [`InvalidRecord`].
    pub(crate) fn decode(
        record: &[u8; FrameRequest::SIZE],
        most: u64,
    ) -> Result<FrameRequest, InvalidRecord> {
        check(record, MAGIC)?;
        let token = Token::from_bytes(&record[24..72])
            .map_err(|_| InvalidRecord::Damaged("a frame has an invalid token"))?;
        let header = BlockHeader::decode(&part(record, 72), most, token.generation)
            .map_err(|_| InvalidRecord::Damaged("a frame has an invalid header, or is too long"))?;
        if header.length != token.length {
            return Err(InvalidRecord::Damaged("a frame has two lengths"));
        }
        let u32_at = |at: usize| u32::from_le_bytes(part(record, at));
        let source = match u32_at(340) {
            STREAM => FrameSource::Stream,
            MEMORY => FrameSource::Memory { address: number(record, 328), remote_key: u32_at(336) },
            _ => return Err(InvalidRecord::Damaged("a frame has an unknown source")),
        };
        let time_left = Duration::from_micros(number(record, 16));
        Ok(FrameRequest { number: number(record, 8), time_left, token, header, source })
    }
}
