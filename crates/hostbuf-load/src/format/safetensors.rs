//! Headers of safetensors. The crate `safetensors` parses the text; it never sees the data.
//!
//! ```text
//! | length of the text (8 bytes, little endian) | text (JSON) | data |
//! ```

use hostbuf_os::printable::printable_name;
use safetensors::Dtype as SafetensorsDtype;
use safetensors::tensor::Metadata;

use super::file_format::FileFormat;
use super::file_header::FileHeader;
use super::header_source::HeaderSource;
use super::json_keys::distinct_keys;
use crate::error::FileProblem;
use crate::table::{Dtype, TensorEntry};

/// The number of bytes before the text.
const PREFIX: u64 = 8;

/// Reads the header.
///
/// # Errors
/// As [`HeaderSource::read`]; [`FileProblem::Header`] for a text that is no header, or whose
/// tensors are not contiguous; [`FileProblem::NamedTwice`]; [`FileProblem::OutOfBounds`].
pub(super) fn read(source: &HeaderSource<'_>) -> Result<FileHeader, FileProblem> {
    let prefix = source.read(0, PREFIX)?;
    let text_bytes = u64::from_le_bytes(prefix.try_into().expect("a prefix of 8 bytes was read"));
    let text = source.read(PREFIX, text_bytes)?;
    let metadata: Metadata = serde_json::from_slice(&text).map_err(|error| match unknown_dtype(&text) {
        Some((name, dtype)) => unsupported(&name, &dtype),
        None => {
            let found = printable_name(&error.to_string());
            FileProblem::header("its first 8 bytes announce a header of safetensors", found)
        }
    })?;
    let keys = distinct_keys(&text).map_err(|tensor| FileProblem::NamedTwice { tensor })?;
    let data_start = PREFIX + text_bytes;
    let mut tensors = Vec::with_capacity(keys.len());
    // An error about several tensors names the first one of the header.
    for name in keys {
        // The metadata are no tensor.
        let Some(info) = metadata.info(&name) else { continue };
        let (start, end) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
        let end = data_start.saturating_add(end);
        if end > source.bytes() {
            return Err(FileProblem::OutOfBounds { tensor: name, end, bytes: source.bytes() });
        }
        let Some(dtype) = dtype_of(info.dtype) else {
            return Err(unsupported(&name, &info.dtype.to_string()));
        };
        tensors.push(TensorEntry {
            name,
            dtype,
            shape: info.shape.iter().map(|&count| count as u64).collect(),
            order: Default::default(),
            byte_order: Default::default(),
            file: 0,
            range: data_start + start..end,
        });
    }
    let end = data_start + metadata.data_len() as u64;
    if end != source.bytes() {
        let stated = format!("its header states that the data end at byte {end}");
        return Err(FileProblem::header(stated, format!("the file has {} bytes", source.bytes())));
    }
    let mut texts: Vec<_> = metadata.metadata().iter().flatten().collect();
    texts.sort_unstable();
    let texts = texts.into_iter().map(|(key, text)| (key.clone(), text.clone())).collect();
    Ok(FileHeader { format: FileFormat::Safetensors, data_start, tensors, metadata: texts })
}

/// Returns the problem of a tensor of a type that is not known.
fn unsupported(name: &str, dtype: &str) -> FileProblem {
    let (name, dtype) = (printable_name(name), printable_name(dtype));
    let what = format!("tensor \"{name}\" of type {dtype}, which this version does not know");
    FileProblem::Unsupported { what, remedy: "Use a newer version of hostbuf" }
}

/// Returns a tensor of a header that the crate has refused, and its type, if the crate does not
/// know the type.
fn unknown_dtype(text: &[u8]) -> Option<(String, String)> {
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(text).ok()?;
    header.into_iter().filter(|(name, _)| name != "__metadata__").find_map(|(name, info)| {
        let dtype = info.get("dtype")?;
        let is_unknown = serde_json::from_value::<SafetensorsDtype>(dtype.clone()).is_err();
        is_unknown.then_some((name, dtype.as_str()?.to_owned()))
    })
}

/// Returns the type of this crate.
fn dtype_of(dtype: SafetensorsDtype) -> Option<Dtype> {
    let found = Dtype::from_name(&dtype.to_string())?;
    (found.bits() as usize == dtype.bitsize()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_types_of_the_crate_are_known() {
        for dtype in Dtype::all().filter(|&dtype| dtype != Dtype::C128) {
            let theirs: SafetensorsDtype =
                serde_json::from_str(&format!("\"{dtype}\"")).expect("the crate has the type");
            assert_eq!(dtype_of(theirs), Some(dtype));
        }
    }
}
