//! The messages of a pool, each in one frame, after the hello of a session.
//!
//! ```text
//! client                                  broker
//!   Hello (a pool's client, its name) ->
//!                                     <-  Welcome (the pool, the limits)
//!   Create                            ->
//!                                     <-  Granted + data, table, event, rows
//!   Mapped                            ->
//!                                     <-  Ready                 the data file is sealed
//!   Create, for memory of a GPU       ->
//!                                     <-  Granted + table, event, rows
//!   Mapped + memory, events           ->                        the producer has made them
//!                                     <-  Ready
//!   Close (the producer)              ->
//!   Attach                            ->
//!                                     <-  Attached + data, table, event, row
//!                                         on a GPU: memory and events in place of data
//!                                     <-  Detach                nothing is published any more
//!   Detached                          ->
//!   HandBack + all of its files       ->                        to the successor of a broker
//!   HandedBack                        ->
//! at any time:                        <-  Refused               instead of an answer
//! ```

use hostbuf_protocol::frame::{FRAME_MAX, FrameError, FrameRef, FrameWriter, Full, REQUIRED};

use super::gpu_terms::GpuTerms;
use super::refusal_record::{RefusalKind, RefusalRecord};
use super::segment_key::SegmentKey;
use crate::pool_id::PoolId;
use crate::segment::SegmentGeometry;

/// The field with the numbers of a message, 8 bytes each.
const NUMBERS: u16 = REQUIRED | 1;
/// The field with the text of a message.
const TEXT: u16 = REQUIRED | 2;
/// The largest length of a text in bytes.
const TEXT_MAX: usize = 16 << 10;
/// The largest count of numbers.
const NUMBERS_MAX: usize = 16;

const _: () = assert!(64 + 8 * NUMBERS_MAX + TEXT_MAX <= FRAME_MAX);

/// The size of a segment and the quota of its readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentTerms {
    /// The sizes of the files.
    pub(crate) geometry: SegmentGeometry,
    /// The number of blocks that one reader may hold.
    pub(crate) quota: u32,
    /// The memory of the blocks if it lies on a GPU.
    pub(crate) gpu: Option<GpuTerms>,
}

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolMessage<'a> {
    /// To a client: the answer to its hello.
    Welcome {
        /// The pool of this broker.
        pool: PoolId,
        /// The number of the client.
        client: u64,
        /// The largest sum of bytes of all segments.
        limit: u64,
        /// The largest sum of bytes of one client's segments.
        per_client: u64,
    },
    /// From a client: make a segment.
    Create {
        /// The number of the request.
        request: u64,
        /// The sizes.
        terms: SegmentTerms,
        /// The name of the stream, for people.
        stream: &'a str,
    },
    /// To a producer, with the files: the segment is made.
    Granted {
        /// The number of the request.
        request: u64,
        /// The segment.
        key: SegmentKey,
    },
    /// From a producer: it has mapped the segment. If the blocks lie on a GPU, the descriptors of
    /// their memory and of the handles of their events come with it.
    Mapped {
        /// The segment.
        key: SegmentKey,
    },
    /// To a producer: the data file is sealed, or the memory of the GPU is known, and readers may
    /// attach.
    Ready {
        /// The segment.
        key: SegmentKey,
    },
    /// From a producer: it publishes nothing any more.
    Close {
        /// The segment.
        key: SegmentKey,
    },
    /// From a client: it wants to read a segment.
    Attach {
        /// The number of the request.
        request: u64,
        /// The segment.
        key: SegmentKey,
    },
    /// To a reader, with the files: it may read.
    Attached {
        /// The number of the request.
        request: u64,
        /// The segment.
        key: SegmentKey,
        /// The sizes.
        terms: SegmentTerms,
        /// The number of its row.
        row: u32,
    },
    /// To a client: nothing is published in the segment any more, and nothing is held.
    Detach {
        /// The segment.
        key: SegmentKey,
    },
    /// From a client: it has unmapped the segment, and closed its files.
    Detached {
        /// The segment.
        key: SegmentKey,
        /// The row that it had as a reader, `None` if it was the producer.
        row: Option<u32>,
    },
    /// From a client of an earlier broker, with its files: it has this segment.
    HandBack {
        /// The segment.
        key: SegmentKey,
        /// The sizes.
        terms: SegmentTerms,
        /// The row of a reader, `None` for the producer.
        row: Option<u32>,
        /// The name of the stream.
        stream: &'a str,
    },
    /// From a client: it has handed back everything.
    HandedBack,
    /// To a client: the answer to a request that is not granted.
    Refused {
        /// The number of the request.
        request: u64,
        /// The reason.
        refusal: RefusalRecord<'a>,
    },
    /// From a client: list what the broker knows.
    Status {
        /// The number of the request.
        request: u64,
    },
    /// To a client: a part of the list. The last one is empty.
    StatusPart {
        /// The number of the request.
        request: u64,
        /// A piece of the text.
        text: &'a str,
    },
}

const WELCOME: u16 = 128;
const CREATE: u16 = 129;
const GRANTED: u16 = 130;
const MAPPED: u16 = 131;
const READY: u16 = 132;
const CLOSE: u16 = 133;
const ATTACH: u16 = 134;
const ATTACHED: u16 = 135;
const DETACH: u16 = 136;
const DETACHED: u16 = 137;
const HAND_BACK: u16 = 138;
const HANDED_BACK: u16 = 139;
const REFUSED: u16 = 140;
const STATUS: u16 = 141;
const STATUS_PART: u16 = 142;

impl SegmentTerms {
    fn to_numbers(self) -> [u64; 7] {
        let SegmentTerms { geometry, quota, gpu } = self;
        let [bytes, low, high] = GpuTerms::to_numbers(gpu);
        let (blocks, readers) = (geometry.blocks().into(), geometry.readers().into());
        [geometry.block_bytes(), blocks, readers, quota.into(), bytes, low, high]
    }

    fn from_numbers(numbers: [u64; 7]) -> Option<SegmentTerms> {
        let [block_bytes, blocks, readers, quota, gpu @ ..] = numbers;
        let (blocks, readers) = (u32::try_from(blocks).ok()?, u32::try_from(readers).ok()?);
        let geometry = SegmentGeometry::new(block_bytes, blocks, readers).ok()?;
        let quota = u32::try_from(quota).ok().filter(|quota| (1..=blocks).contains(quota))?;
        let gpu = GpuTerms::from_numbers(gpu, geometry).ok()?;
        Some(SegmentTerms { geometry, quota, gpu })
    }
}

impl<'a> PoolMessage<'a> {
    /// The largest length of a text in bytes; longer ones are cut.
    pub(crate) const TEXT_MAX: usize = TEXT_MAX;

    /// Encodes the message.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, numbers, text) = self.parts();
        let text = hostbuf_protocol::failure::cut(text, TEXT_MAX);
        let mut packet = vec![0; 64 + 8 * NUMBERS_MAX + text.len().next_multiple_of(8)];
        let write = |packet: &mut [u8]| -> Result<usize, Full> {
            let mut frame = FrameWriter::new(packet, kind)?;
            let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
            frame.push(NUMBERS, &[&bytes])?;
            if !text.is_empty() {
                frame.push(TEXT, &[text.as_bytes()])?;
            }
            Ok(frame.finish().len())
        };
        let length = write(&mut packet).expect("the packet has room for all numbers and the text");
        packet.truncate(length);
        packet
    }

    /// Returns the kind, the numbers and the text of the message.
    fn parts(&self) -> (u16, Vec<u64>, &'a str) {
        let with_key = |kind, key: SegmentKey| (kind, key.to_numbers().to_vec(), "");
        let joined = |parts: &[&[u64]]| parts.concat();
        match *self {
            PoolMessage::Welcome { pool, client, limit, per_client } => {
                let pool = SegmentKey { pool, number: 0 }.to_numbers();
                (WELCOME, joined(&[&pool, &[client, limit, per_client]]), "")
            }
            PoolMessage::Create { request, terms, stream } => {
                (CREATE, joined(&[&[request], &terms.to_numbers()]), stream)
            }
            PoolMessage::Granted { request, key } => (GRANTED, joined(&[&[request], &key.to_numbers()]), ""),
            PoolMessage::Mapped { key } => with_key(MAPPED, key),
            PoolMessage::Ready { key } => with_key(READY, key),
            PoolMessage::Close { key } => with_key(CLOSE, key),
            PoolMessage::Attach { request, key } => (ATTACH, joined(&[&[request], &key.to_numbers()]), ""),
            PoolMessage::Attached { request, key, terms, row } => {
                let numbers = joined(&[&[request], &key.to_numbers(), &terms.to_numbers(), &[row.into()]]);
                (ATTACHED, numbers, "")
            }
            PoolMessage::Detach { key } => with_key(DETACH, key),
            PoolMessage::Detached { key, row } => {
                (DETACHED, joined(&[&key.to_numbers(), &[row.map_or(u64::MAX, u64::from)]]), "")
            }
            PoolMessage::HandBack { key, terms, row, stream } => {
                let row = row.map_or(u64::MAX, u64::from);
                (HAND_BACK, joined(&[&key.to_numbers(), &terms.to_numbers(), &[row]]), stream)
            }
            PoolMessage::HandedBack => (HANDED_BACK, Vec::new(), ""),
            PoolMessage::Refused { request, refusal } => {
                let RefusalRecord { kind, requested, available, text } = refusal;
                (REFUSED, vec![request, kind as u64, requested, available], text)
            }
            PoolMessage::Status { request } => (STATUS, vec![request], ""),
            PoolMessage::StatusPart { request, text } => (STATUS_PART, vec![request], text),
        }
    }

    /// Parses a packet.
    ///
    /// # Errors
    /// [`FrameError`].
    pub(crate) fn parse(packet: &'a [u8]) -> Result<PoolMessage<'a>, FrameError> {
        let frame = FrameRef::parse(packet)?;
        let known = frame.fields().all(|(tag, _)| matches!(tag, NUMBERS | TEXT) || tag & REQUIRED == 0);
        let text = std::str::from_utf8(frame.field(TEXT).unwrap_or_default());
        let (true, Ok(text)) = (known, text) else { return Err(FrameError::Malformed) };
        PoolMessage::from_parts(&frame, text).ok_or(FrameError::Malformed)
    }

    fn from_parts(frame: &FrameRef<'a>, text: &'a str) -> Option<PoolMessage<'a>> {
        let key = || SegmentKey::from_numbers(frame.numbers(NUMBERS)?);
        let request_and_key = || {
            let [request, a, b, c] = frame.numbers(NUMBERS)?;
            Some((request, SegmentKey::from_numbers([a, b, c])?))
        };
        Some(match frame.kind() {
            WELCOME => {
                let [low, high, _, client, limit, per_client] = frame.numbers(NUMBERS)?;
                let pool = SegmentKey::from_numbers([low, high, 0])?.pool;
                PoolMessage::Welcome { pool, client, limit, per_client }
            }
            CREATE => {
                let [request, terms @ ..] = frame.numbers::<8>(NUMBERS)?;
                let terms = SegmentTerms::from_numbers(terms)?;
                PoolMessage::Create { request, terms, stream: text }
            }
            GRANTED => request_and_key().map(|(request, key)| PoolMessage::Granted { request, key })?,
            MAPPED => PoolMessage::Mapped { key: key()? },
            READY => PoolMessage::Ready { key: key()? },
            CLOSE => PoolMessage::Close { key: key()? },
            ATTACH => request_and_key().map(|(request, key)| PoolMessage::Attach { request, key })?,
            ATTACHED => {
                let [request, k0, k1, k2, terms @ .., row] = frame.numbers::<12>(NUMBERS)?;
                let (key, terms) =
                    (SegmentKey::from_numbers([k0, k1, k2])?, SegmentTerms::from_numbers(terms)?);
                let row = row_of(row, terms)?;
                PoolMessage::Attached { request, key, terms, row }
            }
            DETACH => PoolMessage::Detach { key: key()? },
            DETACHED => {
                let [a, b, c, row] = frame.numbers(NUMBERS)?;
                let key = SegmentKey::from_numbers([a, b, c])?;
                let row = if row == u64::MAX { None } else { Some(u32::try_from(row).ok()?) };
                PoolMessage::Detached { key, row }
            }
            HAND_BACK => {
                let [k0, k1, k2, terms @ .., row] = frame.numbers::<11>(NUMBERS)?;
                let (key, terms) =
                    (SegmentKey::from_numbers([k0, k1, k2])?, SegmentTerms::from_numbers(terms)?);
                let row = if row == u64::MAX { None } else { Some(row_of(row, terms)?) };
                PoolMessage::HandBack { key, terms, row, stream: text }
            }
            HANDED_BACK => PoolMessage::HandedBack,
            REFUSED => {
                let [request, kind, requested, available] = frame.numbers(NUMBERS)?;
                let kind = RefusalKind::from_number(kind);
                let refusal = RefusalRecord { kind, requested, available, text };
                PoolMessage::Refused { request, refusal }
            }
            STATUS => PoolMessage::Status { request: frame.numbers::<1>(NUMBERS)?[0] },
            STATUS_PART => PoolMessage::StatusPart { request: frame.numbers::<1>(NUMBERS)?[0], text },
            _ => return None,
        })
    }
}

fn row_of(number: u64, terms: SegmentTerms) -> Option<u32> {
    u32::try_from(number).ok().filter(|row| *row < terms.geometry.readers())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> Vec<PoolMessage<'static>> {
        let key = SegmentKey { pool: PoolId::from_bits(7 << 100 | 9), number: 3 };
        let geometry = SegmentGeometry::new(8_294_400, 8, 4).unwrap();
        let terms = SegmentTerms { geometry, quota: 5, gpu: None };
        let memory = GpuTerms::new([9; 16], 64 << 21, geometry);
        let on_gpu = SegmentTerms { gpu: memory, ..terms };
        assert!(memory.is_some());
        let refusal = RefusalRecord {
            kind: RefusalKind::NoSpace,
            requested: 9,
            available: 4,
            text: "the limit of the pool",
        };
        vec![
            PoolMessage::Welcome { pool: key.pool, client: 1, limit: 2, per_client: 3 },
            PoolMessage::Create { request: 4, terms, stream: "left camera" },
            PoolMessage::Create { request: 4, terms: on_gpu, stream: "" },
            PoolMessage::Granted { request: 4, key },
            PoolMessage::Mapped { key },
            PoolMessage::Ready { key },
            PoolMessage::Close { key },
            PoolMessage::Attach { request: 5, key },
            PoolMessage::Attached { request: 5, key, terms, row: 3 },
            PoolMessage::Attached { request: 5, key, terms: on_gpu, row: 0 },
            PoolMessage::Detach { key },
            PoolMessage::Detached { key, row: None },
            PoolMessage::Detached { key, row: Some(3) },
            PoolMessage::HandBack { key, terms, row: None, stream: "x" },
            PoolMessage::HandBack { key, terms, row: Some(0), stream: "" },
            PoolMessage::HandBack { key, terms: on_gpu, row: Some(3), stream: "x" },
            PoolMessage::HandedBack,
            PoolMessage::Refused { request: 6, refusal },
            PoolMessage::Status { request: 7 },
            PoolMessage::StatusPart { request: 7, text: "{}" },
        ]
    }

    #[test]
    fn every_message_survives_its_packet() {
        for message in messages() {
            let packet = message.encode();
            assert_eq!(PoolMessage::parse(&packet), Ok(message));
        }
    }

    #[test]
    fn no_packet_that_was_damaged_makes_the_reader_panic() {
        for message in messages() {
            let packet = message.encode();
            for at in 0..packet.len() {
                assert!(PoolMessage::parse(&packet[..at]).is_err());
                for bit in 0..8 {
                    let mut damaged = packet.clone();
                    damaged[at] ^= 1u8 << bit;
                    let _ = PoolMessage::parse(&damaged);
                }
            }
        }
    }

    #[test]
    fn sizes_that_no_segment_has_are_refused() {
        let key = [0, 0, 1];
        for (terms, row) in [
            ([0, 2, 1, 1, 0, 0, 0], 0),
            ([1, 2, 1, 3, 0, 0, 0], 0),
            ([1, 2, 1, 0, 0, 0, 0], 0),
            ([1, 2, 1, 1, 0, 0, 0], 1),
            // On a GPU: less memory than the blocks have, and a GPU without memory.
            ([1, 2, 1, 1, 4096, 7, 7], 0),
            ([1, 2, 1, 1, 0, 7, 7], 0),
        ] {
            let numbers = [&key[..], &terms, &[row]].concat();
            let mut buffer = [0; 256];
            let mut frame = FrameWriter::new(&mut buffer, HAND_BACK).unwrap();
            let bytes: Vec<u8> = numbers.iter().flat_map(|n: &u64| n.to_ne_bytes()).collect();
            frame.push(NUMBERS, &[&bytes]).unwrap();
            assert_eq!(PoolMessage::parse(frame.finish()), Err(FrameError::Malformed), "{numbers:?}");
        }
    }

    #[test]
    fn a_long_text_is_cut() {
        let text = "é".repeat(TEXT_MAX);
        let packet = PoolMessage::StatusPart { request: 1, text: &text }.encode();
        let Ok(PoolMessage::StatusPart { text, .. }) = PoolMessage::parse(&packet) else { panic!() };
        assert_eq!(text.len(), TEXT_MAX);
    }
}
