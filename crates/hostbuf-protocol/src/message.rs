//! The messages between a participant and the agent of its host, over an abstract unix socket of
//! type SOCK_SEQPACKET. Every packet is one [frame](crate::frame) with one message.
//!
//! ```text
//! participant                         agent
//!   Hello (role and rank)         ->
//!   Ready (in the program itself) ->
//!                                 <-  Ballot (candidates)          repeated while there is no
//!   Votes (the candidates held)   ->                               common candidate
//!                                 <-  Search (from)                after the last ballot
//!   Hole (its lowest hole)        ->
//!                                 <-  Agreed (range + descriptors)
//!   GpuReady (if it uses GPUs)    ->                               only with GPU sections
//!   Mapped                        ->
//!                                 <-  Ballot, Search               as above, for the GPU sections
//!                                 <-  GpuRange (address)
//!   GpuMemory (+ descriptors)     ->                               the rank that creates it
//!                                 <-  GpuMemory (+ descriptors)    the other ranks that use GPUs
//!   GpuMapped                     ->
//!                                 <-  Go                           all ranks have mapped
//!   at any time:                  <-  Fail (error, and if to print it)
//!   Failed (error)                ->
//! ```
//!
//! A message has up to four kinds of fields: the list of its numbers, a text, an error, and one for
//! each buffer. A list may be longer than its reader expects: a later build has added numbers.

use crate::candidates::Ballot;
use crate::failure::{ErrorRecord, cut_bytes};
use crate::frame::{FRAME_MAX, FrameError, FrameRef, FrameWriter, Full, REQUIRED, numbers};
pub use crate::hello::{AddressWindow, Coverage, Hello, Role};
use crate::limits::{MAX_BUFFERS, MAX_CANDIDATES, NAME_MAX, TEXT_MAX};
use crate::message_kind::Kind;
use crate::range::{AgreedRange, Extent, Extents, Part};

/// The field with the numbers of a message, 8 bytes each.
const NUMBERS: u16 = REQUIRED | 1;
/// The field with the text of a message.
const TEXT: u16 = REQUIRED | 2;
/// The field of one buffer: offset, length and flags, then its name.
const BUFFER: u16 = REQUIRED | 3;
/// The field with the encoded [`ErrorRecord`] of a failure.
const ERROR: u16 = REQUIRED | 5;

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Message<'a> {
    /// From a participant: its identification.
    Hello {
        /// The part in the job.
        hello: Hello,
        /// The command line of a rank.
        command: &'a [u8],
    },
    /// From a participant: its program itself runs and can vote.
    Ready {
        /// The addresses that the program may hold.
        address_window: AddressWindow,
        /// The way in which the program gets the buffer.
        coverage: Coverage,
        /// The reason if the program does not map the buffer before `main`.
        reason: &'a [u8],
    },
    /// To a participant: hold those of these addresses that are free.
    Ballot {
        /// The number of bytes to hold at each.
        length: u64,
        /// The addresses.
        candidates: Ballot,
    },
    /// From a participant: the answer to a ballot.
    Votes {
        /// The candidates that it holds, as bits.
        mask: u64,
        /// The first candidate that it cannot hold.
        refusal: Option<RefusedCandidate<'a>>,
    },
    /// To a participant: find the lowest hole.
    Search {
        /// The length of the hole in bytes.
        length: u64,
        /// The address at which the search begins.
        from: u64,
        /// The alignment of the hole in bytes.
        align: u64,
    },
    /// From a participant: the hole that it has found, if there is one.
    Hole {
        /// The address of the hole.
        address: Option<u64>,
    },
    /// To a participant, with the descriptors of the range's parts: the memory of the job.
    Agreed {
        /// The address and the layout.
        range: AgreedRange<'a>,
        /// The value of [`ENV_REPORT`](crate::environment::ENV_REPORT).
        report: &'a [u8],
    },
    /// From a participant: everything is mapped.
    Mapped,
    /// From a rank, before [`Mapped`](Message::Mapped): it has initialised CUDA, and maps the GPU
    /// sections.
    GpuReady,
    /// To a rank: all ranks hold the range of the GPU sections.
    GpuRange {
        /// The address of the range.
        address: u64,
        /// True if this rank creates the memory of the sections.
        creates: bool,
    },
    /// With the descriptors of the pieces of the GPU sections, in their order. From a rank: it has
    /// created and mapped them. To a participant: map them.
    GpuMemory {
        /// The address of the range.
        address: u64,
    },
    /// From a rank: the GPU sections are mapped.
    GpuMapped,
    /// To a participant: run `main`.
    Go {
        /// The line, if any, that this rank prints for its host.
        notice: &'a [u8],
    },
    /// To a participant: the job has failed.
    Fail {
        /// True if the participant prints the line of the error.
        prints: bool,
        /// The error of the job.
        error: ErrorRecord<'a>,
    },
    /// To a client: the server does not serve it. Its other clients, and their job, go on.
    Refused {
        /// The reason, which the client prints.
        error: ErrorRecord<'a>,
    },
    /// From a participant: it cannot continue.
    Failed {
        /// The reason.
        error: ErrorRecord<'a>,
    },
    /// From a member: its part of a gather operation.
    Gather {
        /// The number of the operation in its group.
        sequence: u64,
        /// The group.
        group: u64,
        /// The number of members.
        size: u64,
        /// The part, at most [`TEXT_MAX`] bytes.
        part: &'a [u8],
    },
    /// To a member: the part of another member.
    Gathered {
        /// The number of the operation in its group.
        sequence: u64,
        /// The group.
        group: u64,
        /// The rank of the member on this host.
        rank: u64,
        /// The part.
        part: &'a [u8],
    },
    /// From a member: it leaves on purpose. To a member: another member has left.
    Left {
        /// The rank of the leaving member on this host.
        local_rank: u64,
        /// True if its process has ended, or its connection has, without this message.
        ended: bool,
    },
    /// To a rank of a program that allocates, from its host's leader: the pages are populated, or
    /// populating has failed.
    Populated,
}

/// A candidate that a participant could not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// Exhaustive: a sender sets every field of the message.
pub struct RefusedCandidate<'a> {
    /// The candidate.
    pub address: u64,
    /// The error of `mmap`.
    pub errno: u64,
    /// The start and the end of the first mapping in the range, or zeros if there is none.
    pub mapping: (u64, u64),
    /// The path of that mapping, empty for anonymous memory.
    pub path: &'a [u8],
}

impl RefusedCandidate<'_> {
    /// Returns whether a limit of the participant is the cause, so that it can hold no other
    /// candidate either.
    #[must_use]
    pub fn is_limit(&self) -> bool {
        self.errno == hostbuf_raw::syscall::Errno::NOMEM.0 as u64 && self.mapping == (0, 0)
    }
}

// The longest message is that with all buffers.
const _: () = assert!(128 + TEXT_MAX + MAX_BUFFERS * (8 + 24 + NAME_MAX.next_multiple_of(8)) <= FRAME_MAX);

/// Appends a field with a list of numbers.
fn push_numbers(frame: &mut FrameWriter<'_>, list: &[u64]) -> Result<(), Full> {
    let mut bytes = [0; 8 * (1 + MAX_CANDIDATES)];
    for (to, number) in bytes.chunks_exact_mut(8).zip(list) {
        to.copy_from_slice(&number.to_ne_bytes());
    }
    frame.push(NUMBERS, &[&bytes[..8 * list.len()]])
}

/// Appends a text, which is cut at the last character that ends within [`TEXT_MAX`] bytes.
fn push_text(frame: &mut FrameWriter<'_>, text: &[u8]) -> Result<(), Full> {
    push_part(frame, cut_bytes(text, TEXT_MAX))
}

/// Appends an error.
fn push_error(frame: &mut FrameWriter<'_>, error: &ErrorRecord<'_>) -> Result<(), Full> {
    let mut record = [0; ErrorRecord::SIZE];
    let length = error.encode(&mut record);
    frame.push(ERROR, &[&record[..length]])
}

/// Appends a member's part of a gather operation.
fn push_part(frame: &mut FrameWriter<'_>, part: &[u8]) -> Result<(), Full> {
    if part.is_empty() { Ok(()) } else { frame.push(TEXT, &[part]) }
}

impl<'a> Message<'a> {
    fn kind(&self) -> Kind {
        match self {
            Message::Hello { .. } => Kind::Hello,
            Message::Ready { .. } => Kind::Ready,
            Message::Ballot { .. } => Kind::Ballot,
            Message::Votes { .. } => Kind::Votes,
            Message::Search { .. } => Kind::Search,
            Message::Hole { .. } => Kind::Hole,
            Message::Agreed { .. } => Kind::Agreed,
            Message::Mapped => Kind::Mapped,
            Message::Go { .. } => Kind::Go,
            Message::Fail { .. } => Kind::Fail,
            Message::Failed { .. } => Kind::Failed,
            Message::Gather { .. } => Kind::Gather,
            Message::Gathered { .. } => Kind::Gathered,
            Message::Populated => Kind::Populated,
            Message::Left { .. } => Kind::Left,
            Message::Refused { .. } => Kind::Refused,
            Message::GpuReady => Kind::GpuReady,
            Message::GpuRange { .. } => Kind::GpuRange,
            Message::GpuMemory { .. } => Kind::GpuMemory,
            Message::GpuMapped => Kind::GpuMapped,
        }
    }

    /// Encodes the message. Texts are cut at [`TEXT_MAX`] bytes, at the end of a character.
    ///
    /// # Panics
    /// If the buffer is shorter than the [length](Message::length) of the message. [`FRAME_MAX`]
    /// bytes are enough for every message with at most [`MAX_BUFFERS`] buffers.
    #[must_use]
    pub fn encode<'b>(&self, buffer: &'b mut [u8]) -> &'b [u8] {
        let encoded = FrameWriter::new(buffer, self.kind() as u16).and_then(|mut frame| {
            self.write(&mut frame)?;
            Ok(frame.finish())
        });
        encoded.expect("the buffer has room for the message")
    }

    /// Returns the length of the encoded message in bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        let mut frame = FrameWriter::counting();
        self.write(&mut frame).expect("a frame that is only counted takes every field");
        frame.length()
    }

    fn write(&self, to: &mut FrameWriter<'_>) -> Result<(), Full> {
        match self {
            Message::Hello { hello, command } => {
                push_numbers(to, &hello.to_numbers())?;
                push_text(to, command)?;
            }
            Message::Ready { address_window, coverage, reason } => {
                push_numbers(to, &[*address_window as u64, *coverage as u64])?;
                push_text(to, reason)?;
            }
            Message::Ballot { length, candidates } => {
                let mut list = [0; 1 + MAX_CANDIDATES];
                list[0] = *length;
                for (number, &address) in list[1..].iter_mut().zip(candidates.as_slice()) {
                    *number = address as u64;
                }
                push_numbers(to, &list[..=candidates.as_slice().len()])?;
            }
            Message::Votes { mask, refusal: None } => push_numbers(to, &[*mask])?,
            Message::Votes { mask, refusal: Some(refused) } => {
                let RefusedCandidate { address, errno, mapping: (start, end), path } = *refused;
                push_numbers(to, &[*mask, address, errno, start, end])?;
                push_text(to, path)?;
            }
            Message::Search { length, from, align } => push_numbers(to, &[*length, *from, *align])?,
            Message::Hole { address: None } => {}
            Message::Hole { address: Some(address) } => push_numbers(to, &[*address])?,
            Message::Agreed { range, report } => {
                let AgreedRange { address, length, identity, control, buffers } = range;
                let parts = [identity.offset, identity.length, control.offset, control.length];
                let [a, b, c, d] = parts;
                push_numbers(to, &[*address, *length, a, b, c, d])?;
                for Extent { part, flags, name } in buffers.iter() {
                    let [offset, length, flags] = [part.offset, part.length, flags].map(u64::to_ne_bytes);
                    to.push(BUFFER, &[&offset, &length, &flags, name.bytes()])?;
                }
                push_text(to, report)?;
            }
            Message::Go { notice } => push_text(to, notice)?,
            Message::Fail { prints, error } => {
                push_numbers(to, &[u64::from(*prints)])?;
                push_error(to, error)?;
            }
            Message::Failed { error } | Message::Refused { error } => push_error(to, error)?,
            Message::Gather { sequence, group, size, part } => {
                push_numbers(to, &[*sequence, *group, *size])?;
                push_part(to, part)?;
            }
            Message::Gathered { sequence, group, rank, part } => {
                push_numbers(to, &[*sequence, *group, *rank])?;
                push_part(to, part)?;
            }
            Message::Left { local_rank, ended } => push_numbers(to, &[*local_rank, u64::from(*ended)])?,
            Message::GpuRange { address, creates } => push_numbers(to, &[*address, u64::from(*creates)])?,
            Message::GpuMemory { address } => push_numbers(to, &[*address])?,
            Message::Mapped | Message::Populated | Message::GpuReady | Message::GpuMapped => {}
        }
        Ok(())
    }

    /// Parses a packet.
    ///
    /// # Errors
    /// As [`FrameRef::parse`]; [`FrameError::Malformed`] also for an unknown kind, a missing or
    /// invalid number, or an unknown field that must not be ignored.
    pub fn parse(packet: &'a [u8]) -> Result<Message<'a>, FrameError> {
        let frame = FrameRef::parse(packet)?;
        Message::of(&frame).ok_or(FrameError::Malformed)
    }

    fn of(frame: &FrameRef<'a>) -> Option<Message<'a>> {
        let known = |tag: u16| tag & REQUIRED == 0 || matches!(tag, NUMBERS | TEXT | BUFFER | ERROR);
        if !frame.fields().all(|(tag, _)| known(tag)) {
            return None;
        }
        let error = || ErrorRecord::decode(frame.field(ERROR)?);
        let text = frame.field(TEXT).unwrap_or_default();
        if text.len() > TEXT_MAX {
            return None;
        }
        Some(match Kind::from_number(frame.kind())? {
            Kind::Hello => {
                Message::Hello { hello: Hello::from_numbers(frame.numbers(NUMBERS)?)?, command: text }
            }
            Kind::Ready => {
                let [address_window, coverage] = frame.numbers(NUMBERS)?;
                let address_window = AddressWindow::from_number(address_window)?;
                Message::Ready { address_window, coverage: Coverage::from_number(coverage)?, reason: text }
            }
            Kind::Ballot => {
                let list = frame.field(NUMBERS)?;
                let [length] = numbers(list)?;
                let mut addresses = [0; MAX_CANDIDATES];
                let count = list.len() / 8 - 1;
                for (i, address) in addresses.get_mut(..count)?.iter_mut().enumerate() {
                    let [number] = numbers(&list[8 * (i + 1)..])?;
                    *address = number as usize;
                }
                Message::Ballot { length, candidates: Ballot::new(&addresses[..count]) }
            }
            Kind::Votes => {
                let [mask] = frame.numbers(NUMBERS)?;
                let refusal = frame.numbers(NUMBERS).map(|[_, address, errno, start, end]: [u64; 5]| {
                    RefusedCandidate { address, errno, mapping: (start, end), path: text }
                });
                Message::Votes { mask, refusal }
            }
            Kind::Search => {
                let [length, from, align] = frame.numbers(NUMBERS)?;
                Message::Search { length, from, align }
            }
            Kind::Hole => Message::Hole { address: frame.numbers(NUMBERS).map(|[address]| address) },
            Kind::Agreed => Message::Agreed { range: range_of(frame)?, report: text },
            Kind::Mapped => Message::Mapped,
            Kind::Go => Message::Go { notice: text },
            Kind::Fail => {
                let [prints] = frame.numbers(NUMBERS)?;
                Message::Fail { prints: prints != 0, error: error()? }
            }
            Kind::Failed => Message::Failed { error: error()? },
            Kind::Refused => Message::Refused { error: error()? },
            Kind::Gather => {
                let [sequence, group, size] = frame.numbers(NUMBERS)?;
                Message::Gather { sequence, group, size, part: text }
            }
            Kind::Gathered => {
                let [sequence, group, rank] = frame.numbers(NUMBERS)?;
                Message::Gathered { sequence, group, rank, part: text }
            }
            Kind::Left => {
                let [local_rank, ended] = frame.numbers(NUMBERS)?;
                Message::Left { local_rank, ended: ended != 0 }
            }
            Kind::Populated => Message::Populated,
            Kind::GpuReady => Message::GpuReady,
            Kind::GpuRange => {
                let [address, creates] = frame.numbers(NUMBERS)?;
                Message::GpuRange { address, creates: creates != 0 }
            }
            Kind::GpuMemory => {
                let [address] = frame.numbers(NUMBERS)?;
                Message::GpuMemory { address }
            }
            Kind::GpuMapped => Message::GpuMapped,
        })
    }
}

/// Returns the range in a frame, or `None` unless every part lies within it.
fn range_of<'a>(frame: &FrameRef<'a>) -> Option<AgreedRange<'a>> {
    let [address, length, a, b, c, d] = frame.numbers(NUMBERS)?;
    let (identity, control) = (Part { offset: a, length: b }, Part { offset: c, length: d });
    let buffers = Extents::in_frame(*frame, BUFFER)?;
    Some(AgreedRange { address, length, identity, control, buffers }).filter(AgreedRange::is_valid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::ErrorClass;
    use crate::failure::tests::SPACE;
    use crate::range::tests::{extents, range};

    fn encoded(message: &Message<'_>) -> Vec<u8> {
        message.encode(&mut [0xff; FRAME_MAX]).to_vec()
    }

    fn samples() -> [Message<'static>; 21] {
        let few: &'static [Extent] = Vec::leak(extents(3));
        let many: &'static [Extent] = Vec::leak(extents(MAX_BUFFERS as u64));
        let hello = Hello { role: Role::Rank, rank: 3, size: 4, local_rank: 1, local_size: 2, request: 9 };
        let refused = RefusedCandidate {
            address: 1 << 40,
            errno: 17,
            mapping: (1 << 40, 1 << 41),
            path: b"/usr/lib/libc.so",
        };
        [
            Message::Hello { hello, command: b"./app -v" },
            Message::Hello { hello: Hello::of(Role::Library), command: b"" },
            Message::Ready {
                address_window: AddressWindow::Sanitized,
                coverage: Coverage::Attaches,
                reason: b"static",
            },
            Message::Ballot { length: 1 << 30, candidates: Ballot::new(&[1 << 44, 1 << 45]) },
            Message::Ballot { length: 1 << 30, candidates: Ballot::new(&[5 << 21; MAX_CANDIDATES]) },
            Message::Votes { mask: 0b101, refusal: None },
            Message::Votes { mask: 0, refusal: Some(refused) },
            Message::Search { length: 1 << 30, from: 1 << 44, align: 1 << 21 },
            Message::Hole { address: Some(1 << 44) },
            Message::Hole { address: None },
            Message::Agreed { range: range(few), report: b"rank 0 on h" },
            Message::Agreed { range: range(many), report: &[b'x'; TEXT_MAX] },
            Message::Go { notice: b"" },
            Message::Fail { prints: true, error: SPACE },
            Message::Failed { error: ErrorRecord::new(ErrorClass::Lost, "it cannot") },
            Message::Refused { error: ErrorRecord::new(ErrorClass::Os, "too many") },
            Message::Gather { sequence: 1, group: 2, size: 3, part: &[0xff; TEXT_MAX] },
            Message::Gathered { sequence: 1, group: 2, rank: 2, part: b"" },
            Message::Left { local_rank: 3, ended: true },
            Message::GpuRange { address: 1 << 44, creates: true },
            Message::GpuMemory { address: 1 << 44 },
        ]
    }

    #[test]
    fn messages_are_parsed_from_their_frames() {
        for message in samples().into_iter().chain([
            Message::Mapped,
            Message::Populated,
            Message::GpuReady,
            Message::GpuMapped,
        ]) {
            let bytes = encoded(&message);
            assert_eq!(Message::parse(&bytes), Ok(message));
            assert_eq!(message.length(), bytes.len());
            assert_eq!(message.encode(&mut vec![0xff; bytes.len()]), bytes);
        }
    }

    #[test]
    fn a_flipped_bit_gives_an_error_or_a_message_that_is_encoded_again() {
        for message in samples() {
            let good = encoded(&message);
            for at in 0..good.len().min(512) {
                for bit in 0..8 {
                    let mut bytes = good.clone();
                    bytes[at] ^= 1 << bit;
                    if let Ok(parsed) = Message::parse(&bytes) {
                        assert_eq!(Message::parse(&encoded(&parsed)), Ok(parsed));
                    }
                }
            }
        }
    }

    #[test]
    fn a_missing_number_is_an_error() {
        for message in samples() {
            let whole = encoded(&message);
            let original = FrameRef::parse(&whole).unwrap();
            let mut buffer = [0; FRAME_MAX];
            let mut without = FrameWriter::new(&mut buffer, original.kind()).unwrap();
            for (tag, value) in original.fields().filter(|(tag, _)| *tag != NUMBERS) {
                without.push(tag, &[value]).unwrap();
            }
            let parsed = Message::parse(without.finish());
            let needs_none = matches!(
                message,
                Message::Hole { .. } | Message::Go { .. } | Message::Failed { .. } | Message::Refused { .. }
            );
            assert_eq!(parsed.is_ok(), needs_none, "{message:?}");
        }
    }

    #[test]
    fn a_failure_without_its_error_is_malformed() {
        let refused = Message::Refused { error: SPACE };
        for message in
            [Message::Fail { prints: true, error: SPACE }, Message::Failed { error: SPACE }, refused]
        {
            let mut buffer = [0; FRAME_MAX];
            let mut without = FrameWriter::new(&mut buffer, message.kind() as u16).unwrap();
            push_numbers(&mut without, &[1]).unwrap();
            push_text(&mut without, b"no room").unwrap();
            assert_eq!(Message::parse(without.finish()), Err(FrameError::Malformed));
        }
    }

    #[test]
    fn unknown_fields_are_ignored_unless_they_are_required() {
        let message = Message::Go { notice: b"hello" };
        let with = |tag: u16| {
            let mut buffer = [0; FRAME_MAX];
            let mut frame = FrameWriter::new(&mut buffer, Kind::Go as u16).unwrap();
            frame.push(tag, &[b"of a later build"]).unwrap();
            frame.push(TEXT, &[b"hello"]).unwrap();
            frame.finish().to_vec()
        };
        assert_eq!(Message::parse(&with(77)), Ok(message));
        assert_eq!(Message::parse(&with(REQUIRED | 77)), Err(FrameError::Malformed));
    }

    #[test]
    fn a_long_text_is_cut_at_the_end_of_a_character() {
        let text = "x".repeat(TEXT_MAX - 1) + "\u{e9}";
        let bytes = encoded(&Message::Go { notice: text.as_bytes() });
        let Ok(Message::Go { notice }) = Message::parse(&bytes) else { panic!("it is valid") };
        assert_eq!(notice, "x".repeat(TEXT_MAX - 1).as_bytes());
    }

    #[test]
    fn a_rank_outside_its_job_is_an_error() {
        let good = Hello { role: Role::Rank, rank: 3, size: 4, local_rank: 1, local_size: 2, request: 9 };
        let parses = |hello: Hello| Message::parse(&encoded(&Message::Hello { hello, command: b"" })).is_ok();
        assert!(parses(good) && parses(Hello { size: 0, ..good }));
        assert!(!parses(Hello { rank: 4, ..good }));
        assert!(!parses(Hello { local_rank: 2, ..good }));
        assert!(!parses(Hello { local_size: 1 << 21, ..good }));
        assert!(!parses(Hello { size: 1 << 41, ..good }));
    }

    #[test]
    fn a_range_with_a_part_outside_is_an_error() {
        let buffers = extents(2);
        let mut outside = range(&buffers);
        outside.length -= 1;
        let message = Message::Agreed { range: outside, report: b"" };
        assert_eq!(Message::parse(&encoded(&message)), Err(FrameError::Malformed));
    }
}
