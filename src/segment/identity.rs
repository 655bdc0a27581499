//! The description of a job's buffers, which does not change once the agents have agreed on the
//! address. Its file is sealed against writes, so no process can change it.
//!
//! ```text
//! | head | table of contents | the job (one row) | buffer 0 | ... | section 0 | ... | nodes of sections | pieces |
//! ```

use crate::error::{AttachError, Error, Result};
use crate::segment::control_layout::{ControlLayout, UNIT};
use crate::segment::gpu_piece::{GPU_PIECES, GpuPiece, PIECE_LENGTH};
use crate::segment::section_identity::{
    self, NODE_LENGTH, SECTION_LENGTH, SECTION_NODES, SECTIONS, SectionIdentity,
};
use hostbuf_memory::Pages;
use hostbuf_protocol::contents::{self, Contents, ContentsError, Table, TableFile};
use hostbuf_protocol::frame::numbers;
use hostbuf_protocol::range::Name;

/// The kind of the table of the job, which has one row.
const JOB: u16 = 1;
/// The kind of the table of the buffers.
const BUFFERS: u16 = 2;
/// The version of the rows of all five tables.
const VERSION: u16 = 1;
const JOB_LENGTH: usize = 56;
const NAME_LENGTH: usize = size_of::<Name>();
const BUFFER_LENGTH: usize = NAME_LENGTH + 8 * 8;
/// The number of tables: five here, three in the control file.
const TABLES: usize = 8;

/// The description of a job on one host.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// The job's random number.
    pub job: u128,
    /// The address of the first buffer, the same on every host.
    pub address: u64,
    /// The number of bytes reserved at the address.
    pub length: u64,
    /// The index of this host in the job.
    pub host: u32,
    /// The number of hosts in the job, 0 before they have been compared (`hostbuf exec`).
    pub hosts: u32,
    /// The number of ballots and searches of the agreement.
    pub rounds: u32,
    /// The buffers.
    pub buffers: Vec<BufferIdentity>,
    /// The sections of all buffers.
    pub sections: Vec<SectionIdentity>,
    /// The pieces of the GPU sections of all buffers, in the order of their addresses.
    pub gpu_pieces: Vec<GpuPiece>,
}

/// One buffer's part of the identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferIdentity {
    name: Name,
    /// The offset from the agreed address, in bytes.
    pub offset: u64,
    /// The requested size in bytes.
    pub size: u64,
    /// The mapped size in bytes.
    pub length: u64,
    /// The inode of the memory file.
    pub inode: u64,
    /// The kind of pages that were obtained.
    pub pages: Pages,
    /// The number of bytes on huge pages.
    pub huge: u64,
    /// True if the pages are allocated at the first touch.
    pub lazy: bool,
    /// True if core files include the contents.
    pub dump: bool,
}

impl BufferIdentity {
    /// Makes the identity of an empty buffer named `name` (cut at 31 bytes) on `pages`.
    #[must_use]
    pub fn new(name: &str, pages: Pages) -> BufferIdentity {
        let name = Name::new(name.as_bytes());
        let (offset, size, length, inode, huge) = (0, 0, 0, 0, 0);
        BufferIdentity { name, offset, size, length, inode, pages, huge, lazy: false, dump: false }
    }

    /// Returns the name of the buffer.
    #[must_use]
    pub fn name(&self) -> String {
        String::from_utf8_lossy(self.name.bytes()).into_owned()
    }

    fn encode(&self, row: &mut Vec<u8>) {
        let mut name = [0; NAME_LENGTH];
        name[..self.name.bytes().len()].copy_from_slice(self.name.bytes());
        row.extend(name);
        let BufferIdentity { offset, size, length, inode, pages, huge, lazy, dump, .. } = *self;
        let words = [offset, size, length, inode, pages.code(), huge, u64::from(lazy), u64::from(dump)];
        row.extend(words.into_iter().flat_map(u64::to_ne_bytes));
    }

    fn decode(row: &[u8]) -> Option<BufferIdentity> {
        let (name, words) = row.split_at_checked(NAME_LENGTH)?;
        let [offset, size, length, inode, pages, huge, lazy, dump] = numbers(words)?;
        let pages = Pages::from_code(pages)?;
        let (name, lazy, dump) = (Name::new(name), lazy != 0, dump != 0);
        Some(BufferIdentity { name, offset, size, length, inode, pages, huge, lazy, dump })
    }
}

fn digest(front: &[u8], behind: &[u8]) -> u64 {
    let mut hash = xxhash_rust::xxh3::Xxh3::new();
    hash.update(front);
    hash.update(behind);
    hash.digest()
}

impl Identity {
    /// Makes an identity without buffers.
    #[must_use]
    pub fn new(job: u128) -> Identity {
        let (buffers, sections, gpu_pieces) = (Vec::new(), Vec::new(), Vec::new());
        Identity { job, address: 0, length: 0, host: 0, hosts: 0, rounds: 0, buffers, sections, gpu_pieces }
    }

    /// Returns the length of the identity file of a job with these numbers of buffers, sections of
    /// host memory and pieces of GPU sections, in bytes. It is the same on every host, on however
    /// many nodes the sections are.
    #[must_use]
    pub fn file_length(buffers: usize, sections: usize, gpu_pieces: usize) -> u64 {
        let sections = section_identity::longest(sections) + gpu_pieces * PIECE_LENGTH;
        let rows = JOB_LENGTH + buffers * BUFFER_LENGTH + sections;
        ((contents::length(TABLES) + rows) as u64).next_multiple_of(UNIT)
    }

    /// Returns the GPU sections of the buffer with this index, each with its pieces, in the
    /// order of their addresses.
    pub fn gpu_sections(&self, buffer: usize) -> impl Iterator<Item = &[GpuPiece]> {
        let sections = self.gpu_pieces.chunk_by(GpuPiece::shares_section_with);
        sections.filter(move |pieces| pieces[0].buffer == buffer)
    }

    /// Returns the contents of the identity file, up to the last byte in use.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; contents::length(TABLES)];
        let table = |kind, rows: usize, row_length: usize, offset: usize| Table {
            kind,
            version: VERSION,
            file: TableFile::Identity,
            rows: rows as u32,
            row_length: row_length as u32,
            offset: offset as u64,
        };
        let job = table(JOB, 1, JOB_LENGTH, bytes.len());
        let Identity { job: number, address, length, host, hosts, rounds, buffers, sections, gpu_pieces } =
            self;
        let words = [*number as u64, (*number >> 64) as u64, *address, *length];
        let [host, hosts, rounds] = [*host, *hosts, *rounds].map(u64::from);
        bytes.extend(words.into_iter().chain([host, hosts, rounds]).flat_map(u64::to_ne_bytes));
        let list = table(BUFFERS, buffers.len(), BUFFER_LENGTH, bytes.len());
        buffers.iter().for_each(|buffer| buffer.encode(&mut bytes));
        let parts = table(SECTIONS, sections.len(), SECTION_LENGTH, bytes.len());
        sections.iter().for_each(|section| section_identity::encode(section, &mut bytes));
        let on_nodes = sections.iter().map(|section| section.nodes.len()).sum();
        let nodes = table(SECTION_NODES, on_nodes, NODE_LENGTH, bytes.len());
        for (index, section) in sections.iter().enumerate() {
            section_identity::encode_nodes(index, section, &mut bytes);
        }
        let pieces = table(GPU_PIECES, gpu_pieces.len(), PIECE_LENGTH, bytes.len());
        gpu_pieces.iter().for_each(|piece| piece.encode(&mut bytes));
        let [phases, states, ledger] = ControlLayout::new(buffers.len()).tables();
        contents::write(&mut bytes, &[job, list, parts, nodes, pieces, phases, states, ledger], digest);
        bytes
    }

    /// Checks and decodes the contents of an identity file. Returns the identity and the layout of
    /// the control file.
    ///
    /// # Errors
    /// [`Error::Attach`] for another version; [`Error::Corrupt`] for any other invalid value.
    pub fn decode(bytes: &[u8]) -> Result<(Identity, ControlLayout)> {
        let contents = Contents::parse(bytes, digest).map_err(|error| match error {
            ContentsError::NotAnIdentity(found) => Error::Corrupt { word: "the magic number", found },
            ContentsError::Damaged(found) => Error::Corrupt { word: "the identity's checksum", found },
            ContentsError::OtherVersion(version) => {
                let why = format!("version {version}, and this program reads version {}", contents::VERSION);
                other_version(&why)
            }
        })?;
        let row_length = |kind: u16| match kind {
            JOB => JOB_LENGTH,
            BUFFERS => BUFFER_LENGTH,
            SECTIONS => SECTION_LENGTH,
            SECTION_NODES => NODE_LENGTH,
            _ => PIECE_LENGTH,
        };
        let table = |kind: u16| {
            let found = contents.table(kind);
            // A longer row has columns that a later build has added.
            let known = |t: &Table| t.version == VERSION && t.row_length as usize >= row_length(kind);
            found.filter(known).ok_or_else(|| {
                let found = found.map_or("no version".into(), |t| format!("version {}", t.version));
                other_version(&format!("table {kind} has {found}, and this program reads version {VERSION}"))
            })
        };
        let (job, list) = (table(JOB)?, table(BUFFERS)?);
        let damaged = |found| Error::Corrupt { word: "the identity", found };
        let words = contents.rows(job).next().and_then(numbers);
        let [low, high, address, length, host, hosts, rounds] = words.ok_or(damaged(0))?;
        let buffers: Option<Vec<_>> = contents.rows(list).map(BufferIdentity::decode).collect();
        let buffers = buffers.ok_or(damaged(1))?;
        let rows = |kind: u16| table(kind).map(|table| contents.rows(table));
        let sections = section_identity::decode(rows(SECTIONS)?, rows(SECTION_NODES)?, buffers.len());
        let sections = sections.ok_or(damaged(2))?;
        let gpu_pieces = GpuPiece::decode_all(rows(GPU_PIECES)?, buffers.len()).ok_or(damaged(3))?;
        let layout = ControlLayout::of(buffers.len(), |kind| contents.table(kind))
            .ok_or_else(|| other_version("its control page has other tables than this program reads"))?;
        let job = u128::from(low) | u128::from(high) << 64;
        let [host, hosts, rounds] = [host, hosts, rounds].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        Ok((Identity { job, address, length, host, hosts, rounds, buffers, sections, gpu_pieces }, layout))
    }
}

fn other_version(why: &str) -> Error {
    let why = format!(
        "the buffers were made by another version of hostbuf ({why}): use one version for launcher and program"
    );
    AttachError::OtherVersion { why }.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::section_identity::NodeBytes;
    use hostbuf_os::NodeId;
    use hostbuf_protocol::limits::MAX_BUFFERS;

    fn sample(count: usize) -> Identity {
        let mut identity = Identity::new(u128::MAX - 5);
        (identity.address, identity.length, identity.host, identity.hosts) = (1 << 44, 1 << 30, 2, 3);
        identity.buffers = (0..count)
            .map(|i| BufferIdentity {
                offset: (i as u64) << 21,
                length: 4096,
                lazy: i % 2 == 0,
                ..BufferIdentity::new(&format!("b{i}"), Pages::Huge2M)
            })
            .collect();
        let nodes = [(0, 8192), (3, 4096)].map(|(node, bytes)| NodeBytes {
            node: NodeId(node),
            requested: bytes,
            obtained: bytes,
        });
        let section = |buffer, name: &str, placement: Option<&str>| SectionIdentity {
            buffer,
            name: name.into(),
            offset: 4096,
            length: 12288,
            placement: placement.map(|text| text.parse().unwrap()),
            nodes: placement.map_or(Vec::new(), |_| nodes.to_vec()),
        };
        if count > 0 {
            identity.sections = vec![section(0, "grid", Some("0,3")), section(count - 1, "", None)];
            let piece = |gpu, offset| GpuPiece::new(count - 1, "table", gpu, offset, 2 << 20);
            identity.gpu_pieces = vec![piece(3, 0), piece(0, 2 << 20)];
        }
        identity
    }

    #[test]
    fn an_identity_is_decoded_from_its_file() {
        for count in [0, 1, 16, 17, MAX_BUFFERS] {
            let identity = sample(count);
            let mut bytes = identity.encode();
            let length = Identity::file_length(count, 2, 2);
            assert!(bytes.len() as u64 <= length);
            bytes.resize(length as usize, 0);
            assert_eq!(Identity::decode(&bytes).unwrap(), (identity, ControlLayout::new(count)));
        }
    }

    #[test]
    fn any_flipped_byte_is_an_error() {
        let bytes = sample(2).encode();
        for at in 0..bytes.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut other = bytes.clone();
                other[at] ^= flip;
                assert!(Identity::decode(&other).is_err(), "byte {at}");
            }
        }
    }

    #[test]
    fn another_version_is_refused_with_a_reason() {
        let mut head = sample(1).encode();
        head[8] += 1;
        // The version of the first table, with a checksum that matches.
        let mut table = sample(1).encode();
        table[contents::length(0) + 2] += 1;
        let sum = digest(&table[..24], &table[32..]);
        table[24..32].copy_from_slice(&sum.to_ne_bytes());
        for bytes in [head, table] {
            let error = Identity::decode(&bytes).unwrap_err();
            assert!(matches!(error, Error::Attach(AttachError::OtherVersion { .. })), "{error}");
            assert!(error.to_string().contains("version 2"), "{error}");
        }
    }
}
