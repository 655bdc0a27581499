//! The form of an error between processes: a class with a stable number, the host and the rank of
//! the process that detected it, and the line for the user.
//!
//! The process that detects an error makes the record. Ranks, agents and the launcher only pass it
//! on.

use crate::limits::TEXT_MAX;

/// The class of an error. The number is the exit status by which a command states the class, and
/// the byte that stands for it in messages. It is 80 plus the number of the `hostbuf_status` where
/// there is one, so that it differs from the statuses of shells and from most programs' own. A
/// class keeps its number in all versions. docs/failures.md has the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum ErrorClass {
    /// An error of no other class.
    General = 1,
    /// An argument, the command line or an environment variable is invalid.
    Invalid = 2,
    /// This host, or this build, does not support the request.
    Unsupported = 82,
    /// There is not enough memory.
    NoSpace = 83,
    /// The ranks have no common address, or made different requests.
    Disagreed = 84,
    /// The kernel refused.
    Os = 85,
    /// An agent could not be started or reached, or has ended: there is nothing to attach to.
    Attach = 86,
    /// A rank has ended, or could not continue, before all ranks had the buffer.
    Lost = 87,
    /// The control page is damaged.
    Corrupt = 88,
    /// The arena is full.
    Full = 89,
    /// Filling or populating a buffer failed.
    Fill = 90,
    /// An RDMA operation on another host failed.
    Peer = 91,
    /// The buffer cannot be frozen, or it is frozen.
    Freeze = 92,
    /// The received bytes differ from the sent ones.
    Replicate = 93,
    /// A collective operation failed.
    Collective = 94,
    /// A device refused to register or deregister memory.
    Registration = 95,
    /// A registration cache has no room.
    Budget = 96,
    /// An allocator of registered memory is at its limit.
    Limit = 97,
    /// A forked child used registrations of its parent.
    Forked = 98,
    /// A defect of hostbuf.
    Defect = 101,
    /// The program exists, but cannot be executed.
    NotExecutable = 126,
    /// The program does not exist.
    NotFound = 127,
}

impl ErrorClass {
    /// All classes, in the order of their numbers.
    pub const ALL: [ErrorClass; 22] = [
        ErrorClass::General,
        ErrorClass::Invalid,
        ErrorClass::Unsupported,
        ErrorClass::NoSpace,
        ErrorClass::Disagreed,
        ErrorClass::Os,
        ErrorClass::Attach,
        ErrorClass::Lost,
        ErrorClass::Corrupt,
        ErrorClass::Full,
        ErrorClass::Fill,
        ErrorClass::Peer,
        ErrorClass::Freeze,
        ErrorClass::Replicate,
        ErrorClass::Collective,
        ErrorClass::Registration,
        ErrorClass::Budget,
        ErrorClass::Limit,
        ErrorClass::Forked,
        ErrorClass::Defect,
        ErrorClass::NotExecutable,
        ErrorClass::NotFound,
    ];

    /// Returns the class with an exit status, or `None` if no class has it.
    #[must_use]
    pub fn from_status(status: u8) -> Option<ErrorClass> {
        ErrorClass::ALL.into_iter().find(|class| class.status() == status)
    }

    /// Returns the exit status, which is also the class's number in messages.
    #[must_use]
    pub fn status(self) -> u8 {
        self as u8
    }

    /// Returns the number of the `hostbuf_status` of the C interface, or `None` if it has none.
    #[must_use]
    pub fn c_status(self) -> Option<u8> {
        match self {
            ErrorClass::Invalid => Some(1),
            ErrorClass::General | ErrorClass::NotExecutable | ErrorClass::NotFound => None,
            class => Some(class.status() - 80),
        }
    }

    /// Returns whether the program of a rank cannot run at all.
    #[must_use]
    pub fn is_of_program(self) -> bool {
        matches!(self, ErrorClass::NotExecutable | ErrorClass::NotFound)
    }
}

/// The largest number of texts in [`ErrorRecord::operands`].
pub const MAX_OPERANDS: usize = 4;

/// An error in the form in which it is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// Exhaustive: a sender sets every field of the record.
pub struct ErrorRecord<'a> {
    /// The class.
    pub class: ErrorClass,
    /// The rank of the process that detected the error, if it has one.
    pub rank: Option<u64>,
    /// The host of that process, or an empty text if it is unknown.
    pub host: &'a str,
    /// The line for the user.
    pub line: &'a str,
    /// The operands from which the receiver restores a typed error, if its class has any; the
    /// unused ones are empty.
    pub operands: [&'a str; MAX_OPERANDS],
}

impl<'a> ErrorRecord<'a> {
    /// The largest length of an encoded record in bytes.
    pub const SIZE: usize = 2048;
    /// The largest length of [`host`](ErrorRecord::host) in bytes.
    pub const HOST_MAX: usize = 255;

    /// Makes the record of an error from its class and the line for the user.
    #[must_use]
    pub fn new(class: ErrorClass, line: &'a str) -> ErrorRecord<'a> {
        ErrorRecord { class, rank: None, host: "", line, operands: [""; MAX_OPERANDS] }
    }

    /// Encodes the record and returns its length in bytes. The rest of `to` becomes zero. A line of
    /// more than [`TEXT_MAX`] bytes, or a host that is too long, is cut at the end of a character.
    /// Operands that do not fit are all left out.
    pub fn encode(&self, to: &mut [u8; ErrorRecord::SIZE]) -> usize {
        to.fill(0);
        to[0] = self.class.status();
        to[1] = u8::from(self.rank.is_some());
        to[2..HEAD].copy_from_slice(&self.rank.unwrap_or(0).to_le_bytes());
        let mut end = put(to, HEAD, cut(self.host, ErrorRecord::HOST_MAX));
        end = put(to, end, cut(self.line, TEXT_MAX));
        let needed: usize = self.operands.iter().map(|text| LENGTH + text.len()).sum();
        let fit = needed <= to.len() - end;
        self.operands.iter().fold(end, |end, text| put(to, end, if fit { text } else { "" }))
    }

    /// Decodes a record. A class that only a later build knows becomes [`ErrorClass::General`].
    /// Returns `None` if the bytes are not a record.
    #[must_use]
    pub fn decode(bytes: &'a [u8]) -> Option<ErrorRecord<'a>> {
        let bytes = &bytes[..bytes.len().min(ErrorRecord::SIZE)];
        let (&[class, has_rank, rank @ ..], mut rest) = bytes.split_first_chunk::<HEAD>()?;
        let class = match class {
            0 => return None,
            status => ErrorClass::from_status(status).unwrap_or(ErrorClass::General),
        };
        let rank = match has_rank {
            0 => None,
            1 => Some(u64::from_le_bytes(rank)),
            _ => return None,
        };
        let host = take(&mut rest).filter(|host| host.len() <= ErrorRecord::HOST_MAX)?;
        let line = take(&mut rest).filter(|line| line.len() <= TEXT_MAX)?;
        let mut operands = [""; MAX_OPERANDS];
        for operand in &mut operands {
            *operand = take(&mut rest)?;
        }
        Some(ErrorRecord { class, rank, host, line, operands })
    }
}

/// The number of bytes in front of the texts.
const HEAD: usize = 10;
/// The number of bytes of a text's length.
const LENGTH: usize = size_of::<u16>();

// Host and line always fit, also without operands.
const _: () =
    assert!(HEAD + ErrorRecord::HOST_MAX + TEXT_MAX + (2 + MAX_OPERANDS) * LENGTH <= ErrorRecord::SIZE);
const _: () = assert!(ErrorRecord::SIZE <= u16::MAX as usize);

/// Returns the longest beginning of `text` with at most `most` bytes that ends with a character.
#[must_use]
pub fn cut(text: &str, most: usize) -> &str {
    &text[..cut_bytes(text.as_bytes(), most).len()]
}

/// Returns the longest beginning of `text`, which is UTF-8 or at least similar, with at most `most`
/// bytes that ends with a character.
#[must_use]
pub fn cut_bytes(text: &[u8], most: usize) -> &[u8] {
    let mut length = text.len().min(most);
    while text.get(length).is_some_and(|byte| byte & 0xc0 == 0x80) && length > 0 {
        length -= 1;
    }
    &text[..length]
}

/// Writes a text behind its length, and returns the end.
fn put(to: &mut [u8], at: usize, text: &str) -> usize {
    let (length, end) = (at + LENGTH, at + LENGTH + text.len());
    to[at..length].copy_from_slice(&(text.len() as u16).to_le_bytes());
    to[length..end].copy_from_slice(text.as_bytes());
    end
}

/// Takes a text off the front of `rest`.
fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let (length, behind) = rest.split_first_chunk::<LENGTH>()?;
    let (text, behind) = behind.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    *rest = behind;
    core::str::from_utf8(text).ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const SPACE: ErrorRecord<'_> = ErrorRecord {
        class: ErrorClass::NoSpace,
        rank: Some(7),
        host: "h1",
        line: "not enough memory on h1",
        operands: ["2", "1", "the pool", "request less"],
    };

    #[test]
    fn a_record_is_decoded_from_its_bytes() {
        let mut bytes = [0xff; ErrorRecord::SIZE];
        let length = SPACE.encode(&mut bytes);
        assert_eq!(ErrorRecord::decode(&bytes), Some(SPACE));
        assert_eq!(ErrorRecord::decode(&bytes[..length]), Some(SPACE));
        for short in 0..length {
            assert_eq!(ErrorRecord::decode(&bytes[..short]), None, "{short}");
        }
        assert_eq!(ErrorRecord::decode(&[0; ErrorRecord::SIZE]), None, "no error");
    }

    #[test]
    fn a_long_text_is_cut_at_the_end_of_a_character() {
        let line = "é".repeat(TEXT_MAX);
        let odd = format!("x{line}");
        let mut bytes = [0; ErrorRecord::SIZE];
        for (text, length) in [(&line, TEXT_MAX), (&odd, TEXT_MAX - 1)] {
            let record = ErrorRecord { host: text, line: text, rank: None, ..SPACE };
            record.encode(&mut bytes);
            let back = ErrorRecord::decode(&bytes).expect("a record");
            assert_eq!((back.line, back.line.len()), (&text[..length], length));
            assert!(text.starts_with(back.host) && back.host.len() >= ErrorRecord::HOST_MAX - 1);
            assert_eq!((back.rank, back.operands), (None, SPACE.operands));
        }
    }

    #[test]
    fn a_text_that_is_too_long_is_no_record() {
        let mut bytes = [0; ErrorRecord::SIZE];
        ErrorRecord { host: "", line: &"x".repeat(TEXT_MAX), operands: ["x"; 4], ..SPACE }.encode(&mut bytes);
        assert!(ErrorRecord::decode(&bytes).is_some());
        // The first operand becomes a part of the line.
        bytes[12..14].copy_from_slice(&(TEXT_MAX as u16 + 3).to_le_bytes());
        assert_eq!(ErrorRecord::decode(&bytes), None);
    }

    #[test]
    fn a_class_of_a_later_build_is_general() {
        let mut bytes = [0; ErrorRecord::SIZE];
        let length = SPACE.encode(&mut bytes);
        bytes[0] = 99;
        let general = ErrorRecord { class: ErrorClass::General, ..SPACE };
        assert_eq!(ErrorRecord::decode(&bytes[..length]), Some(general));
    }

    #[test]
    fn operands_that_do_not_fit_are_all_left_out() {
        let long = "x".repeat(ErrorRecord::SIZE);
        let record = ErrorRecord { operands: ["2", "1", &long, ""], ..SPACE };
        let mut bytes = [0; ErrorRecord::SIZE];
        record.encode(&mut bytes);
        assert_eq!(ErrorRecord::decode(&bytes), Some(ErrorRecord { operands: [""; MAX_OPERANDS], ..SPACE }));
    }

    #[test]
    fn every_flipped_bit_gives_a_record_or_none() {
        let mut bytes = [0; ErrorRecord::SIZE];
        let length = SPACE.encode(&mut bytes);
        for at in 0..length {
            for bit in 0..8 {
                let mut flipped = bytes;
                flipped[at] ^= 1 << bit;
                assert_ne!(ErrorRecord::decode(&flipped), Some(SPACE), "byte {at} bit {bit}");
            }
        }
    }

    #[test]
    fn a_status_identifies_its_class() {
        for class in ErrorClass::ALL {
            assert_eq!(ErrorClass::from_status(class.status()), Some(class));
        }
        assert!(ErrorClass::ALL.is_sorted_by_key(|class| class.status()));
        for none in [0, 81, 99, 100, 102, 137] {
            assert_eq!(ErrorClass::from_status(none), None);
        }
    }
}
