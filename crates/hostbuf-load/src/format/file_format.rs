//! The formats of files.

use std::path::Path;

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileFormat {
    /// Any file: one tensor of bytes with the name of the file.
    Raw,
    /// [safetensors](https://github.com/huggingface/safetensors): many tensors.
    Safetensors,
    /// numpy's format: one tensor, named for the file without `.npy`.
    Npy,
    /// The file format of Arrow IPC, which is also that of Feather 2: one tensor of bytes, named
    /// for the file without its extension. `Tensors::record_batches` (feature `arrow`) decodes it.
    ArrowIpc,
}

impl FileFormat {
    /// Returns the format of a path by its extension.
    pub(crate) fn of_extension(path: &Path) -> Option<FileFormat> {
        match path.extension()?.to_str()? {
            "safetensors" => Some(FileFormat::Safetensors),
            "npy" => Some(FileFormat::Npy),
            "arrow" | "feather" => Some(FileFormat::ArrowIpc),
            _ => None,
        }
    }

    /// Returns the number in encoded tables.
    pub(crate) fn code(self) -> u8 {
        match self {
            FileFormat::Raw => 0,
            FileFormat::Safetensors => 1,
            FileFormat::Npy => 2,
            FileFormat::ArrowIpc => 3,
        }
    }

    /// Returns the format with this number.
    pub(crate) fn from_code(code: u8) -> Option<FileFormat> {
        let all = [FileFormat::Raw, FileFormat::Safetensors, FileFormat::Npy, FileFormat::ArrowIpc];
        all.into_iter().find(|format| format.code() == code)
    }
}
