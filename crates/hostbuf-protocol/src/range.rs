//! The result of the agreement: an address range, and the parts of it that hold the memory of a
//! job.

use crate::frame::{FrameRef, numbers};
use crate::limits::{MAX_BUFFERS, NAME_MAX};

/// The flag in [`Extent::flags`] that includes the pages in core files.
pub const FLAG_DUMP: u64 = 1 << 63;
/// The flag in [`Extent::flags`] of a buffer whose pages must stay small.
pub const FLAG_SMALL_PAGES: u64 = 1 << 62;

/// A part of the agreed range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
// Exhaustive: an offset and a length.
pub struct Part {
    /// The offset from the agreed address, in bytes.
    pub offset: u64,
    /// The length in bytes.
    pub length: u64,
}

/// The range of addresses on which all ranks have agreed, and its layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// Exhaustive: a sender sets every field of the message.
pub struct AgreedRange<'a> {
    /// The agreed address, at which the first buffer begins.
    pub address: u64,
    /// The number of bytes reserved at the address.
    pub length: u64,
    /// The description of the job, which no process can change.
    pub identity: Part,
    /// The state of the buffers, which all processes of the job change. It follows the identity.
    pub control: Part,
    /// The buffers.
    pub buffers: Extents<'a>,
}

/// One buffer in the agreed range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
// Exhaustive: a sender sets every field of the message.
pub struct Extent {
    /// The buffer's part of the range.
    pub part: Part,
    /// The flags of `mmap` in addition to `MAP_SHARED | MAP_FIXED`, [`FLAG_DUMP`] and
    /// [`FLAG_SMALL_PAGES`].
    pub flags: u64,
    /// The name of the buffer.
    pub name: Name,
}

/// The name of a buffer: at most [`NAME_MAX`] bytes without NUL.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Name([u8; NAME_MAX + 1]);

impl Name {
    /// Makes a name of the first [`NAME_MAX`] bytes of `bytes`, up to a NUL.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Name {
        let mut name = Name::default();
        for (to, &byte) in name.0.iter_mut().zip(bytes).take(NAME_MAX) {
            if byte == 0 {
                break;
            }
            *to = byte;
        }
        name
    }

    /// Returns the bytes of the name.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let length = self.0.iter().position(|&b| b == 0).unwrap_or(NAME_MAX);
        &self.0[..length]
    }
}

impl core::fmt::Debug for Name {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "\"{}\"", self.bytes().escape_ascii())
    }
}

/// The buffers of a job, in order: a list in memory, or the fields of a received frame.
#[derive(Clone, Copy)]
pub struct Extents<'a>(Source<'a>);

#[derive(Clone, Copy)]
enum Source<'a> {
    List(&'a [Extent]),
    Frame(FrameRef<'a>, u16),
}

impl<'a> Extents<'a> {
    /// Returns the buffers of a list.
    #[must_use]
    pub fn of(list: &'a [Extent]) -> Extents<'a> {
        Extents(Source::List(list))
    }

    /// Returns the buffers in the fields of `frame` with this tag, or `None` if one is invalid.
    pub(crate) fn in_frame(frame: FrameRef<'a>, tag: u16) -> Option<Extents<'a>> {
        let mut fields = frame.fields().filter(|(found, _)| *found == tag);
        fields.all(|(_, value)| Extent::decode(value).is_some()).then_some(Extents(Source::Frame(frame, tag)))
    }

    /// Returns the buffers.
    pub fn iter(&self) -> impl Iterator<Item = Extent> + use<'a> {
        let (list, frame) = match self.0 {
            Source::List(list) => (list, None),
            Source::Frame(frame, tag) => (&[][..], Some((frame, tag))),
        };
        let decoded = frame.into_iter().flat_map(|(frame, tag)| {
            let fields = frame.fields().filter(move |(found, _)| *found == tag);
            fields.filter_map(|(_, value)| Extent::decode(value))
        });
        list.iter().copied().chain(decoded)
    }

    /// Returns the number of buffers.
    #[must_use]
    pub fn count(&self) -> usize {
        self.iter().count()
    }
}

impl PartialEq for Extents<'_> {
    fn eq(&self, other: &Extents<'_>) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Extents<'_> {}

impl core::fmt::Debug for Extents<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Extent {
    /// Decodes the value of a field.
    fn decode(value: &[u8]) -> Option<Extent> {
        let [offset, length, flags] = numbers(value)?;
        let name = value.get(24..).filter(|name| name.len() <= NAME_MAX)?;
        Some(Extent { part: Part { offset, length }, flags, name: Name::new(name) })
    }
}

impl AgreedRange<'_> {
    /// Returns whether the range lies within the address space, not at address 0, and its parts
    /// follow each other in it without overlapping: at most [`MAX_BUFFERS`] buffers, the identity
    /// and, directly behind it, the control page. No part is empty. A job that only loads files has
    /// no buffer.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let mut end = Some(0);
        let parts = self.buffers.iter().map(|buffer| buffer.part).chain([self.identity, self.control]);
        let in_order = parts.into_iter().all(|part| {
            let follows = part.length > 0 && end.is_some_and(|end| end <= part.offset);
            end = part.offset.checked_add(part.length);
            follows
        });
        self.address > 0
            && self.address.checked_add(self.length).is_some()
            && in_order
            && end.is_some_and(|end| end <= self.length)
            && self.identity.offset + self.identity.length == self.control.offset
            && self.buffers.count() <= MAX_BUFFERS
    }

    /// Returns the number of descriptors that belong to the range: those of the identity, of the
    /// control page, and of the buffers in order.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        2 + self.buffers.count()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns `count` buffers of one page.
    pub(crate) fn extents(count: u64) -> Vec<Extent> {
        let extent = |i: u64| {
            let name = Name::new(format!("a-buffer-with-a-long-name-{i}").as_bytes());
            Extent { part: Part { offset: 4096 * i, length: 4096 }, flags: i, name }
        };
        (0..count).map(extent).collect()
    }

    /// Returns a range that contains these buffers.
    pub(crate) fn range(buffers: &[Extent]) -> AgreedRange<'_> {
        let end = 4096 * buffers.len() as u64;
        let identity = Part { offset: end, length: 4096 };
        let control = Part { offset: end + 4096, length: 8192 };
        AgreedRange {
            address: 1 << 40,
            length: end + 3 * 4096,
            identity,
            control,
            buffers: Extents::of(buffers),
        }
    }

    #[test]
    fn a_part_outside_the_range_is_invalid() {
        let buffers = extents(3);
        let good = range(&buffers);
        assert!(good.is_valid() && good.descriptors() == 5);
        assert!(!AgreedRange { address: u64::MAX, ..good }.is_valid());
        assert!(!AgreedRange { length: good.length - 1, ..good }.is_valid());
        assert!(!AgreedRange { identity: Part { offset: 0, length: 4096 }, ..good }.is_valid());
        assert!(!AgreedRange { control: Part { length: u64::MAX, ..good.control }, ..good }.is_valid());
        assert!(!AgreedRange { control: Part { offset: 0, ..good.control }, ..good }.is_valid());
        let mut outside = buffers.clone();
        outside[2].part.offset = u64::MAX;
        assert!(!AgreedRange { buffers: Extents::of(&outside), ..good }.is_valid());
    }

    #[test]
    fn empty_overlapping_and_unordered_parts_are_invalid() {
        let buffers = extents(3);
        let good = range(&buffers);
        let with = |index: usize, offset, length| {
            let mut changed = buffers.clone();
            changed[index].part = Part { offset, length };
            AgreedRange { buffers: Extents::of(&changed), ..good }.is_valid()
        };
        assert!(with(1, 4096, 4096));
        assert!(!with(1, 4096, 0), "empty");
        assert!(!with(1, 4095, 4096), "it overlaps the buffer before");
        assert!(!with(1, 4096, 4097), "it overlaps the next buffer");
        assert!(!with(2, 8192, 4097), "it overlaps the identity");
        assert!(!with(0, 8192, 4096) && !with(2, 0, 4096), "out of order");
        assert!(!AgreedRange { address: 0, ..good }.is_valid());
        assert!(!AgreedRange { identity: Part { length: 0, ..good.identity }, ..good }.is_valid());
    }

    #[test]
    fn a_range_has_a_largest_number_of_buffers() {
        for (count, valid) in [(0, true), (1, true), (MAX_BUFFERS, true), (MAX_BUFFERS + 1, false)] {
            assert_eq!(range(&extents(count as u64)).is_valid(), valid, "{count}");
        }
    }

    #[test]
    fn a_long_name_is_cut_and_a_nul_ends_it() {
        assert_eq!(Name::new(&[b'x'; 40]).bytes(), [b'x'; NAME_MAX]);
        assert_eq!(Name::new(b"ab\0cd").bytes(), b"ab");
    }
}
