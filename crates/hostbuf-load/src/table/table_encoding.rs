//! The encoded form of a table, which lies in the buffer for all ranks.
//!
//! ```text
//! | magic (8) | version (4) | 0 (4) | length (8) | checksum (8) | body |
//!
//! body:   files (list) | tensors (list) | bytes of the region | bytes of the headers
//! file:   path | format (1) | device | inode | bytes | modified (8) | start of the data
//!         | offset in the region | metadata (list of key and text)
//! tensor: name | type (1) | order (1: 0 C, 1 Fortran) | byte order (1: 0 little, 1 big)
//!         | file | start | end | shape (list of numbers)
//! list:   number of items, and the items
//! ```
//!
//! Numbers have 8 bytes unless stated otherwise, and are little endian. Paths, names and texts are
//! preceded by their length. `length` is that of the whole table, and the checksum (xxh3, 64 bits)
//! covers the body. A reader of another version refuses the table: hostbuf has one version for a
//! job.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;

use xxhash_rust::xxh3::xxh3_64;

use super::dtype::Dtype;
use super::file_version::FileVersion;
use super::name_index::NameIndex;
use super::source_file::SourceFile;
use super::table_bytes::{TableReader, TableWriter};
use super::tensor_entry::{ArrayOrder, ByteOrder, TensorEntry};
use super::tensor_table::TensorTable;
use crate::format::FileFormat;

const MAGIC: u64 = u64::from_le_bytes(*b"hbtensor");
const VERSION: u32 = 1;
const HEAD: usize = 32;

/// The reason why bytes are no table of tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidTable {
    /// The bytes do not begin as a table does.
    NoTable,
    /// The table has this other version.
    OtherVersion(u32),
    /// The table is damaged: a process has overwritten it.
    Damaged,
}

impl fmt::Display for InvalidTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidTable::NoTable => f.write_str("there is no table of tensors: load files first"),
            InvalidTable::OtherVersion(version) => write!(
                f,
                "the table of tensors has version {version}, and this library knows {VERSION}: use one version of hostbuf in all \
                 programs of a job"
            ),
            InvalidTable::Damaged => f.write_str(
                "the table of tensors is damaged: a process has overwritten it; load the files again",
            ),
        }
    }
}

impl std::error::Error for InvalidTable {}

impl TensorTable {
    /// Encodes the table for other processes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = TableWriter(vec![0; HEAD]);
        writer.number(self.files.len() as u64);
        self.files.iter().for_each(|file| encode_file(file, &mut writer));
        writer.number(self.tensors.len() as u64);
        self.tensors.iter().for_each(|tensor| encode_tensor(tensor, &mut writer));
        writer.number(self.region_bytes);
        writer.number(self.header_bytes);
        let mut bytes = writer.0;
        let (length, checksum) = (bytes.len() as u64, xxh3_64(&bytes[HEAD..]));
        bytes[0..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&length.to_le_bytes());
        bytes[24..32].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Decodes a table at the beginning of `bytes`, and checks all of it. Any bytes are safe.
    ///
    /// # Errors
    /// [`InvalidTable`].
    pub fn decode(bytes: &[u8]) -> Result<TensorTable, InvalidTable> {
        let mut head = TableReader(bytes);
        if head.number() != Some(MAGIC) {
            return Err(InvalidTable::NoTable);
        }
        let numbers = (head.number(), head.number(), head.number());
        let (Some(version), Some(length), Some(checksum)) = numbers else {
            return Err(InvalidTable::Damaged);
        };
        if version as u32 != VERSION {
            return Err(InvalidTable::OtherVersion(version as u32));
        }
        let body = usize::try_from(length).ok().and_then(|length| bytes.get(HEAD..length));
        let body = body.filter(|body| xxh3_64(body) == checksum).ok_or(InvalidTable::Damaged)?;
        decode_body(&mut TableReader(body)).filter(TensorTable::is_consistent).ok_or(InvalidTable::Damaged)
    }

    /// Returns whether the tensors lie within their files, the files within the region, and the
    /// names are sorted.
    fn is_consistent(&self) -> bool {
        let mut end = 0;
        for file in &self.files {
            match file.region_offset.checked_add(file.bytes()) {
                Some(file_end) if file.region_offset >= end => end = file_end,
                _ => return false,
            }
        }
        let fits = |tensor: &TensorEntry| {
            let file = self.files.get(tensor.file);
            tensor.is_consistent() && file.is_some_and(|file| tensor.range.end <= file.bytes())
        };
        end <= self.region_bytes
            && self.tensors.iter().all(fits)
            && self.tensors.is_sorted_by(|a, b| a.name < b.name)
    }
}

fn encode_file(file: &SourceFile, writer: &mut TableWriter) {
    let FileVersion { device, inode, bytes, modified } = file.version;
    writer.text(file.path.as_os_str().as_bytes());
    writer.byte(file.format.code());
    [device, inode, bytes].into_iter().for_each(|number| writer.number(number));
    writer.number(modified.cast_unsigned());
    writer.number(file.data_start);
    writer.number(file.region_offset);
    writer.number(file.metadata.len() as u64);
    for (key, text) in &file.metadata {
        writer.text(key.as_bytes());
        writer.text(text.as_bytes());
    }
}

fn encode_tensor(tensor: &TensorEntry, writer: &mut TableWriter) {
    writer.text(tensor.name.as_bytes());
    writer.byte(tensor.dtype.code());
    writer.byte(u8::from(tensor.order == ArrayOrder::Fortran));
    writer.byte(u8::from(tensor.byte_order == ByteOrder::Big));
    writer.number(tensor.file as u64);
    writer.number(tensor.range.start);
    writer.number(tensor.range.end);
    writer.number(tensor.shape.len() as u64);
    tensor.shape.iter().for_each(|&count| writer.number(count));
}

fn decode_body(reader: &mut TableReader<'_>) -> Option<TensorTable> {
    let files = reader.list(decode_file)?;
    let tensors = reader.list(decode_tensor)?;
    let (region_bytes, header_bytes) = (reader.number()?, reader.number()?);
    let names = NameIndex::new(&tensors);
    Some(TensorTable { files, tensors, names, region_bytes, header_bytes })
}

fn decode_file(reader: &mut TableReader<'_>) -> Option<SourceFile> {
    let path = OsStr::from_bytes(reader.text()?).into();
    let format = FileFormat::from_code(reader.byte()?)?;
    let (device, inode, bytes) = (reader.number()?, reader.number()?, reader.number()?);
    let modified = reader.number()?.cast_signed();
    let (data_start, region_offset) = (reader.number()?, reader.number()?);
    let metadata = reader.list(|reader| Some((reader.string()?, reader.string()?)))?;
    let version = FileVersion { device, inode, bytes, modified };
    Some(SourceFile { path, format, version, data_start, region_offset, metadata })
}

fn decode_tensor(reader: &mut TableReader<'_>) -> Option<TensorEntry> {
    let name = reader.string()?;
    let dtype = Dtype::from_code(reader.byte()?)?;
    let order = if reader.byte()? == 0 { ArrayOrder::C } else { ArrayOrder::Fortran };
    let byte_order = if reader.byte()? == 0 { ByteOrder::Little } else { ByteOrder::Big };
    let file = usize::try_from(reader.number()?).ok()?;
    let range = reader.number()?..reader.number()?;
    let shape = reader.list(TableReader::number)?;
    Some(TensorEntry { name, dtype, shape, order, byte_order, file, range })
}
