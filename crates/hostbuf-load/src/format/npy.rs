//! Headers of numpy's format.
//!
//! ```text
//! | \x93NUMPY | major | minor | length of the text (2 bytes, from version 2 on 4) | text | data |
//! ```
//!
//! The text is a literal of Python:
//! `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`.

use hostbuf_os::printable::printable_name;

use super::file_format::FileFormat;
use super::file_header::FileHeader;
use super::header_source::HeaderSource;
use super::npy_text::{NpyHeader, NpyText};
use crate::error::FileProblem;
use crate::table::{ArrayOrder, ByteOrder, Dtype, TensorEntry};

/// The bytes at the beginning of a file.
pub(super) const MAGIC: &[u8] = b"\x93NUMPY";
/// The longest text that is read. numpy itself refuses 10 000 characters.
const MAX_TEXT: u64 = 1 << 20;

/// Reads the header.
///
/// # Errors
/// As [`HeaderSource::read`]; [`FileProblem::Header`] for a text that is no header;
/// [`FileProblem::OutOfBounds`]; [`FileProblem::Unsupported`] for objects, records, texts and
/// dates.
pub(super) fn read(source: &HeaderSource<'_>, name: String) -> Result<FileHeader, FileProblem> {
    let start = source.read(0, MAGIC.len() as u64 + 2)?;
    let (magic, version) = start.split_at(MAGIC.len());
    if magic != MAGIC {
        let found = format!("this one begins with {:?}", String::from_utf8_lossy(magic));
        return Err(FileProblem::header("a file of numpy begins with \"\\x93NUMPY\"", found));
    }
    let at = start.len() as u64;
    let length_bytes = match version[0] {
        1 => 2,
        2 | 3 => 4,
        other => {
            let what = format!("version {other} of numpy's format, and hostbuf knows 1, 2 and 3");
            return Err(FileProblem::Unsupported { what, remedy: "Write it with numpy.save" });
        }
    };
    let mut length = [0; 8];
    length[..length_bytes as usize].copy_from_slice(&source.read(at, length_bytes)?);
    let length = u64::from_le_bytes(length);
    if length > MAX_TEXT {
        let found = format!("headers of numpy have at most {MAX_TEXT} bytes");
        return Err(FileProblem::header(format!("its header has {length} bytes"), found));
    }
    let text = source.read(at + length_bytes, length)?;
    let data_start = at + length_bytes + length;
    let header = NpyText::new(&text).parse().map_err(|found| {
        FileProblem::header("it begins as a file of numpy", format!("its header is not valid: {found}"))
    })?;
    let tensor = entry(name, &header, data_start, source.bytes())?;
    Ok(FileHeader { format: FileFormat::Npy, data_start, tensors: vec![tensor], metadata: Vec::new() })
}

/// Returns the tensor that a header describes.
fn entry(name: String, header: &NpyHeader, data_start: u64, bytes: u64) -> Result<TensorEntry, FileProblem> {
    let (dtype, byte_order) = dtype_of(&header.descr)?;
    let elements = header.shape.iter().try_fold(1u64, |product, &count| product.checked_mul(count));
    let end = elements.and_then(|elements| dtype.bytes(elements)?.checked_add(data_start));
    match end {
        Some(end) if end <= bytes => Ok(TensorEntry {
            name,
            dtype,
            shape: header.shape.clone(),
            order: if header.is_fortran { ArrayOrder::Fortran } else { ArrayOrder::C },
            byte_order,
            file: 0,
            range: data_start..end,
        }),
        end => Err(FileProblem::OutOfBounds { tensor: name, end: end.unwrap_or(u64::MAX), bytes }),
    }
}

/// Returns the type that a `descr` names: `<f4`, `|u1`, `>c16`.
fn dtype_of(descr: &str) -> Result<(Dtype, ByteOrder), FileProblem> {
    let unsupported = |what: String, remedy| Err(FileProblem::Unsupported { what, remedy });
    let kind = descr.trim_start_matches(['<', '>', '|', '=']);
    let dtype = match kind {
        "b1" | "?" => Dtype::Bool,
        "u1" | "B" => Dtype::U8,
        "i1" | "b" => Dtype::I8,
        "u2" => Dtype::U16,
        "i2" => Dtype::I16,
        "u4" => Dtype::U32,
        "i4" => Dtype::I32,
        "u8" => Dtype::U64,
        "i8" => Dtype::I64,
        "f2" => Dtype::F16,
        "f4" => Dtype::F32,
        "f8" => Dtype::F64,
        "c8" => Dtype::C64,
        "c16" => Dtype::C128,
        _ if kind.starts_with('O') => {
            let remedy =
                "Save the array with a numeric dtype: objects are pickles, which no other process can share";
            let what = format!("an array of Python objects (dtype \"{}\")", printable_name(descr));
            return unsupported(what, remedy);
        }
        _ => {
            let remedy = "Save the array as bool, integer, float16 to float64, complex64 or complex128";
            return unsupported(format!("an array of dtype \"{}\"", printable_name(descr)), remedy);
        }
    };
    let is_big = match descr.chars().next() {
        Some('>') => dtype.bits() > 8,
        Some('<' | '|') => false,
        _ => cfg!(target_endian = "big"),
    };
    Ok((dtype, if is_big { ByteOrder::Big } else { ByteOrder::Little }))
}
