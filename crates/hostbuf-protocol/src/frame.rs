//! Frames: the packets between a process and the agent of its host.
//!
//! ```text
//! 0        4          6       8         12         16
//! | magic  | version  | kind  | length  | reserved | field | field | ...          length
//!
//! field:   | tag (2) | reserved (2) | length (4) | value, padded with zeros to 8 bytes |
//! ```
//!
//! All numbers are in the byte order of the host, since a frame never leaves it. The length counts
//! the whole frame, so a packet that was cut, or that has something behind its frame, is noticed.
//! The first 12 bytes keep their meaning in all versions: a program recognises a frame of another
//! version and can say so.
//!
//! A reader ignores fields whose tag it does not know, unless the tag has the bit [`REQUIRED`]. So
//! a field that older programs may ignore can be added without a new version.

/// The version of the frames that this build writes and reads.
pub const VERSION: u16 = 1;
/// The largest length of a frame in bytes.
pub const FRAME_MAX: usize = 32 << 10;
/// The bit of a tag that makes a frame invalid for a reader that does not know the tag.
pub const REQUIRED: u16 = 1 << 15;

const MAGIC: u32 = u32::from_ne_bytes(*b"hbuf");
const HEAD: usize = 16;
const FIELD_HEAD: usize = 8;

/// A frame under construction in a buffer, or without one, to count its bytes.
pub struct FrameWriter<'b> {
    length: usize,
    buffer: Option<&'b mut [u8]>,
}

/// The buffer has no room for a part of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl<'b> FrameWriter<'b> {
    /// Begins a frame of this kind at the start of `buffer`.
    ///
    /// # Errors
    /// [`Full`] if the buffer is shorter than the head of a frame.
    pub fn new(buffer: &'b mut [u8], kind: u16) -> Result<FrameWriter<'b>, Full> {
        let head = buffer.get_mut(..HEAD).ok_or(Full)?;
        head.fill(0);
        head[0..4].copy_from_slice(&MAGIC.to_ne_bytes());
        head[4..6].copy_from_slice(&VERSION.to_ne_bytes());
        head[6..8].copy_from_slice(&kind.to_ne_bytes());
        Ok(FrameWriter { length: HEAD, buffer: Some(buffer) })
    }

    /// Begins a frame that is only counted: it takes every field, and [`finish`](Self::finish)
    /// returns no bytes.
    #[must_use]
    pub fn counting() -> FrameWriter<'static> {
        FrameWriter { length: HEAD, buffer: None }
    }

    /// Returns the length of the frame in bytes so far.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Appends a field with the concatenation of `parts` as its value.
    ///
    /// # Errors
    /// [`Full`]; the frame is unchanged then.
    pub fn push(&mut self, tag: u16, parts: &[&[u8]]) -> Result<(), Full> {
        let value: usize = parts.iter().map(|part| part.len()).sum();
        let length = self.length + FIELD_HEAD + value.next_multiple_of(8);
        let Some(buffer) = &mut self.buffer else {
            self.length = length;
            return Ok(());
        };
        let field = buffer.get_mut(self.length..length).ok_or(Full)?;
        field.fill(0);
        field[0..2].copy_from_slice(&tag.to_ne_bytes());
        field[4..8].copy_from_slice(&(value as u32).to_ne_bytes());
        let mut at = FIELD_HEAD;
        for part in parts {
            field[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        self.length = length;
        Ok(())
    }

    /// Completes the frame and returns its bytes.
    #[must_use]
    pub fn finish(self) -> &'b [u8] {
        let Some(buffer) = self.buffer else { return &[] };
        buffer[8..12].copy_from_slice(&(self.length as u32).to_ne_bytes());
        &buffer[..self.length]
    }
}

/// The reason why a packet is not a frame of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// Exhaustive: a receiver reports each of them in its own words.
pub enum FrameError {
    /// The packet is a frame of this other version.
    OtherVersion(u16),
    /// The packet is not a frame, or a part of it is invalid.
    Malformed,
}

/// A received frame, all of whose fields lie within it.
#[derive(Clone, Copy, Debug)]
pub struct FrameRef<'a> {
    kind: u16,
    fields: &'a [u8],
}

impl<'a> FrameRef<'a> {
    /// Parses a packet.
    ///
    /// # Errors
    /// [`FrameError::OtherVersion`] for a frame of another version; [`FrameError::Malformed`] for a
    /// packet with another magic number, another length than its head states, or fields that do not
    /// end with it.
    pub fn parse(packet: &'a [u8]) -> Result<FrameRef<'a>, FrameError> {
        let short = |at: usize| Some(u16::from_ne_bytes(packet.get(at..at + 2)?.try_into().ok()?));
        let word = |at: usize| Some(u32::from_ne_bytes(packet.get(at..at + 4)?.try_into().ok()?));
        if word(0) != Some(MAGIC) {
            return Err(FrameError::Malformed);
        }
        let (Some(version), Some(kind)) = (short(4), short(6)) else { return Err(FrameError::Malformed) };
        // Before the length: a frame of another version may be longer than any of this one.
        if version != VERSION {
            return Err(FrameError::OtherVersion(version));
        }
        if word(8).map(|length| length as usize) != Some(packet.len()) {
            return Err(FrameError::Malformed);
        }
        let Some(fields) = packet.get(HEAD..) else { return Err(FrameError::Malformed) };
        let mut rest = fields;
        while !rest.is_empty() {
            (_, _, rest) = split(rest).ok_or(FrameError::Malformed)?;
        }
        Ok(FrameRef { kind, fields })
    }

    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> u16 {
        self.kind
    }

    /// Returns the fields: their tags and values, in order.
    pub fn fields(&self) -> impl Iterator<Item = (u16, &'a [u8])> + use<'a> {
        let mut rest = self.fields;
        core::iter::from_fn(move || {
            let (tag, value, behind) = split(rest)?;
            rest = behind;
            Some((tag, value))
        })
    }

    /// Returns the value of the first field with this tag.
    #[must_use]
    pub fn field(&self, tag: u16) -> Option<&'a [u8]> {
        self.fields().find(|(found, _)| *found == tag).map(|(_, value)| value)
    }

    /// Returns the numbers in the first field with this tag, or `None` if it has fewer.
    #[must_use]
    pub fn numbers<const N: usize>(&self, tag: u16) -> Option<[u64; N]> {
        let value = self.field(tag)?;
        numbers(value)
    }
}

/// Returns the first `N` numbers of a value, or `None` if it has fewer.
#[must_use]
pub fn numbers<const N: usize>(value: &[u8]) -> Option<[u64; N]> {
    let mut list = [0; N];
    for (i, number) in list.iter_mut().enumerate() {
        *number = u64::from_ne_bytes(value.get(8 * i..8 * i + 8)?.try_into().ok()?);
    }
    Some(list)
}

/// Returns the first field's tag and value, and the bytes behind it.
fn split(fields: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let tag = u16::from_ne_bytes(fields.get(0..2)?.try_into().ok()?);
    let length = u32::from_ne_bytes(fields.get(4..8)?.try_into().ok()?) as usize;
    let value = fields.get(FIELD_HEAD..)?.get(..length)?;
    let behind = fields.get(FIELD_HEAD + length.checked_next_multiple_of(8)?..)?;
    Some((tag, value, behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a frame of kind 7 with these fields.
    fn frame(fields: &[(u16, &[&[u8]])]) -> Vec<u8> {
        let mut buffer = [0xff; 256];
        let mut frame = FrameWriter::new(&mut buffer, 7).unwrap();
        for (tag, parts) in fields {
            frame.push(*tag, parts).unwrap();
        }
        frame.finish().to_vec()
    }

    #[test]
    fn fields_are_read_back_in_order() {
        let numbers = [&5u64.to_ne_bytes()[..], &6u64.to_ne_bytes()];
        let bytes = frame(&[(1, &[b"no", b" room"]), (2, &numbers), (1, &[])]);
        let back = FrameRef::parse(&bytes).unwrap();
        assert_eq!(back.kind(), 7);
        assert_eq!(back.field(1), Some(&b"no room"[..]));
        assert_eq!(back.numbers::<2>(2), Some([5, 6]));
        assert_eq!(back.numbers::<3>(2), None);
        assert_eq!(back.fields().map(|(tag, _)| tag).collect::<Vec<_>>(), [1, 2, 1]);
        assert_eq!(bytes.len(), 16 + 16 + 24 + 8);
    }

    #[test]
    fn a_frame_of_another_version_is_told_from_garbage() {
        let mut bytes = frame(&[]);
        bytes[4..6].copy_from_slice(&(VERSION + 1).to_ne_bytes());
        assert_eq!(FrameRef::parse(&bytes).unwrap_err(), FrameError::OtherVersion(VERSION + 1));
        // Also if it was cut, since it may be longer than the frames of this version.
        assert_eq!(FrameRef::parse(&bytes[..8]).unwrap_err(), FrameError::OtherVersion(VERSION + 1));
        bytes[0] = 0;
        assert_eq!(FrameRef::parse(&bytes).unwrap_err(), FrameError::Malformed);
        assert_eq!(FrameRef::parse(&[]).unwrap_err(), FrameError::Malformed);
    }

    #[test]
    fn a_frame_of_any_length_but_its_own_is_malformed() {
        let bytes = frame(&[(1, &[b"text"]), (2, &[&[1; 24]])]);
        for length in 0..bytes.len() {
            assert!(FrameRef::parse(&bytes[..length]).is_err(), "{length}");
            // A head that states the shorter length is accepted only where a field ends.
            let mut cut = bytes[..length].to_vec();
            if length >= 12 {
                cut[8..12].copy_from_slice(&(length as u32).to_ne_bytes());
            }
            assert_eq!(FrameRef::parse(&cut).is_ok(), [16, 32].contains(&length), "{length}");
        }
    }

    #[test]
    fn every_flipped_bit_is_rejected_or_leaves_fields_within_the_frame() {
        let good = frame(&[(1, &[b"text"]), (2, &[&[1; 24]])]);
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bytes = good.clone();
                bytes[at] ^= 1 << bit;
                if let Ok(frame) = FrameRef::parse(&bytes) {
                    let sum: usize = frame.fields().map(|(_, value)| value.len()).sum();
                    assert!(sum <= bytes.len() && at >= 6, "byte {at}");
                }
            }
        }
    }

    #[test]
    fn a_field_that_does_not_fit_leaves_the_frame_unchanged() {
        let mut buffer = [0; 32];
        let mut writer = FrameWriter::new(&mut buffer, 7).unwrap();
        assert_eq!(writer.push(1, &[&[0; 9]]), Err(Full));
        assert_eq!(writer.finish(), frame(&[]));
        assert!(FrameWriter::new(&mut buffer[..HEAD - 1], 7).is_err());
    }
}
