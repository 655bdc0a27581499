//! The pieces of GPU sections in the identity.

use hostbuf_protocol::frame::numbers;
use hostbuf_protocol::range::Name;

/// The kind of the table of the pieces.
pub(super) const GPU_PIECES: u16 = 8;
/// The length of a row in bytes.
pub(super) const PIECE_LENGTH: usize = 4 * 8 + size_of::<Name>();

/// A part of a GPU section that lies on one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuPiece {
    /// The index of the buffer.
    pub buffer: usize,
    /// The name of the section.
    pub section: String,
    /// The number of the GPU on the host, in the order of the PCI addresses.
    pub gpu: u32,
    /// The offset from the address of the range of all GPU sections, in bytes.
    pub offset: u64,
    /// The number of bytes.
    pub length: u64,
}

impl GpuPiece {
    /// Makes a piece of `length` bytes.
    pub(super) fn new(buffer: usize, section: &str, gpu: u32, offset: u64, length: u64) -> GpuPiece {
        GpuPiece { buffer, section: section.to_owned(), gpu, offset, length }
    }

    /// Returns whether the piece belongs to the same section as `other`.
    #[must_use]
    pub fn shares_section_with(&self, other: &GpuPiece) -> bool {
        self.buffer == other.buffer && self.section == other.section
    }

    /// Appends the row of the piece.
    pub(super) fn encode(&self, row: &mut Vec<u8>) {
        let words = [self.buffer as u64, u64::from(self.gpu), self.offset, self.length];
        row.extend(words.into_iter().flat_map(u64::to_ne_bytes));
        let mut name = [0; size_of::<Name>()];
        let section = Name::new(self.section.as_bytes());
        name[..section.bytes().len()].copy_from_slice(section.bytes());
        row.extend(name);
    }

    /// Decodes the row of a piece of a job with `buffers` buffers.
    pub(super) fn decode(row: &[u8], buffers: usize) -> Option<GpuPiece> {
        let (words, name) = row.split_at_checked(4 * 8)?;
        let [buffer, gpu, offset, length] = numbers(words)?;
        let (buffer, gpu) = (usize::try_from(buffer).ok()?, u32::try_from(gpu).ok()?);
        let name = Name::new(name);
        let section = std::str::from_utf8(name.bytes()).ok()?;
        Some(GpuPiece::new(buffer, section, gpu, offset, length)).filter(|piece| piece.buffer < buffers)
    }

    /// Decodes the pieces of a job, which must follow one another without gaps.
    pub(super) fn decode_all<'a>(
        rows: impl Iterator<Item = &'a [u8]>,
        buffers: usize,
    ) -> Option<Vec<GpuPiece>> {
        let pieces: Vec<_> = rows.map(|row| GpuPiece::decode(row, buffers)).collect::<Option<_>>()?;
        let mut end = Some(0);
        let mut follows = |piece: &GpuPiece| {
            let follows = end == Some(piece.offset) && piece.length > 0;
            end = piece.offset.checked_add(piece.length);
            follows
        };
        pieces.iter().all(&mut follows).then_some(pieces).filter(|_| end.is_some())
    }
}
