//! The sections of a job's buffers in the identity, with the NUMA nodes of their pages.
//!
//! Two tables describe them: one row for each section, and one for each node of a section.

use hostbuf_memory::placement::{MAX_NODES, Placement};
use hostbuf_os::NodeId;
use hostbuf_protocol::frame::numbers;
use hostbuf_protocol::range::Name;

/// The kind of the table of the sections.
pub(super) const SECTIONS: u16 = 6;
/// The kind of the table of the nodes of all sections.
pub(super) const SECTION_NODES: u16 = 7;

const NAME_LENGTH: usize = size_of::<Name>();
/// The largest length of the text of a placement in bytes.
pub(super) const PLACEMENT_MAX: usize = 104;
/// The length of a row of a section in bytes.
pub(super) const SECTION_LENGTH: usize = 4 * 8 + NAME_LENGTH + PLACEMENT_MAX;
/// The length of a row of a node in bytes.
pub(super) const NODE_LENGTH: usize = 4 * 8;

/// The bytes of a section on one NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeBytes {
    /// The node.
    pub node: NodeId,
    /// The number of bytes that the placement requests on the node.
    pub requested: u64,
    /// The number of bytes that were verified to be on the node. Those of a copy (`numa=copies`)
    /// count once it has been made.
    pub obtained: u64,
}

/// A part of a buffer with a placement, or with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SectionIdentity {
    /// The index of the buffer.
    pub buffer: usize,
    /// The name, empty for the part of a buffer that is in no section.
    pub name: String,
    /// The offset from the beginning of the buffer in bytes.
    pub offset: u64,
    /// The number of bytes: the requested size, rounded up to whole pages.
    pub length: u64,
    /// The requested placement in the syntax of `numa=`, `None` for a section without one.
    pub placement: Option<Placement>,
    /// The nodes of its pages, none without a placement.
    pub nodes: Vec<NodeBytes>,
}

impl SectionIdentity {
    /// Returns whether the section is copied to the nodes of the ranks when the buffer is frozen.
    #[must_use]
    pub fn has_copies(&self) -> bool {
        self.placement == Some(Placement::Copies)
    }

    /// Returns the section with the bytes of its copies in `obtained`. `copied` are the nodes that
    /// have copies of the buffer.
    #[must_use]
    pub fn with_copies(mut self, copied: &[NodeId]) -> SectionIdentity {
        if self.has_copies() {
            let made = self.nodes.iter_mut().filter(|on| copied.contains(&on.node));
            made.for_each(|on| on.obtained = self.length);
        }
        self
    }
}

/// Returns the number of bytes that `sections` sections take in an identity file at most.
pub(super) fn longest(sections: usize) -> usize {
    sections * (SECTION_LENGTH + MAX_NODES * NODE_LENGTH)
}

/// Appends the row of a section.
pub(super) fn encode(section: &SectionIdentity, row: &mut Vec<u8>) {
    let SectionIdentity { buffer, name, offset, length, placement, nodes } = section;
    let words = [*buffer as u64, *offset, *length, nodes.len() as u64];
    row.extend(words.into_iter().flat_map(u64::to_ne_bytes));
    let placement = placement.as_ref().map(ToString::to_string).unwrap_or_default();
    for (text, width) in [(name, NAME_LENGTH), (&placement, PLACEMENT_MAX)] {
        let bytes = &text.as_bytes()[..text.len().min(width)];
        row.extend(bytes);
        row.extend(std::iter::repeat_n(0, width - bytes.len()));
    }
}

/// Appends the rows of the nodes of a section, which is the one with this index.
pub(super) fn encode_nodes(index: usize, section: &SectionIdentity, rows: &mut Vec<u8>) {
    for NodeBytes { node, requested, obtained } in &section.nodes {
        let words = [index as u64, u64::from(node.0), *requested, *obtained];
        rows.extend(words.into_iter().flat_map(u64::to_ne_bytes));
    }
}

/// Decodes all sections of a job with `buffers` buffers from the rows of both tables.
pub(super) fn decode<'a>(
    sections: impl Iterator<Item = &'a [u8]>,
    nodes: impl Iterator<Item = &'a [u8]>,
    buffers: usize,
) -> Option<Vec<SectionIdentity>> {
    let mut sections = sections.map(decode_section).collect::<Option<Vec<_>>>()?;
    for row in nodes {
        let [section, node, requested, obtained] = numbers(row)?;
        let node = NodeId(u32::try_from(node).ok()?);
        let (section, _) = sections.get_mut(usize::try_from(section).ok()?)?;
        section.nodes.push(NodeBytes { node, requested, obtained });
    }
    let complete = |(section, count): &(SectionIdentity, u64)| {
        section.buffer < buffers && section.nodes.len() as u64 == *count
    };
    sections.iter().all(complete).then(|| sections.into_iter().map(|(section, _)| section).collect())
}

/// Decodes the row of a section. Returns it without nodes, and the number of its nodes.
fn decode_section(row: &[u8]) -> Option<(SectionIdentity, u64)> {
    let (words, texts) = row.split_at_checked(4 * 8)?;
    let [buffer, offset, length, count] = numbers(words)?;
    let (name, rest) = texts.split_at_checked(NAME_LENGTH)?;
    let text = |bytes: &[u8]| {
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        std::str::from_utf8(&bytes[..end]).ok().map(str::to_owned)
    };
    let placement = text(rest.get(..PLACEMENT_MAX)?)?;
    let placement = if placement.is_empty() { None } else { Some(placement.parse().ok()?) };
    let buffer = usize::try_from(buffer).ok()?;
    Some((SectionIdentity { buffer, name: text(name)?, offset, length, placement, nodes: Vec::new() }, count))
}
