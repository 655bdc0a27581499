//! Reading the header of a file of any format.

use std::path::Path;

use hostbuf_staging::ReadAt;

use super::file_format::FileFormat;
use super::file_header::{FileHeader, whole_file};
use super::header_source::HeaderSource;
use super::other_contents::{BEGINNING, problem_of};
use super::{arrow, npy, safetensors};
use crate::error::FileProblem;

impl FileHeader {
    /// Reads the header of a file of `bytes` bytes, whose format is `format`, or else that of its
    /// extension or its first bytes. Also returns the number of bytes that were read.
    ///
    /// # Errors
    /// The kernel's, and those of a header that is damaged or not supported. If the file has other
    /// contents that are well known, the error is about these.
    pub(crate) fn read(
        path: &Path,
        file: &dyn ReadAt,
        bytes: u64,
        format: Option<FileFormat>,
    ) -> Result<(FileHeader, u64), FileProblem> {
        let source = HeaderSource::new(file, bytes);
        let header = match format.map_or_else(|| format_of(path, &source), Ok)? {
            FileFormat::Safetensors => safetensors::read(&source),
            FileFormat::Npy => npy::read(&source, name_of(path.file_stem())),
            FileFormat::ArrowIpc => arrow::read(&source, name_of(path.file_stem())),
            FileFormat::Raw => Ok(FileHeader {
                format: FileFormat::Raw,
                data_start: 0,
                tensors: vec![whole_file(name_of(path.file_name()), bytes)],
                metadata: Vec::new(),
            }),
        };
        let header = header.map_err(|problem| instead_of(problem, &source))?;
        Ok((header, source.bytes_read()))
    }
}

/// Returns the problem of a header, or a better one if the file has other contents.
fn instead_of(problem: FileProblem, source: &HeaderSource<'_>) -> FileProblem {
    if !matches!(problem, FileProblem::Header { .. }) {
        return problem;
    }
    let beginning = source.read(0, source.bytes().min(BEGINNING as u64));
    beginning.ok().and_then(|beginning| problem_of(&beginning)).unwrap_or(problem)
}

/// Returns the format by the extension, and otherwise by the first bytes of the file.
fn format_of(path: &Path, source: &HeaderSource<'_>) -> Result<FileFormat, FileProblem> {
    if let Some(format) = FileFormat::of_extension(path) {
        return Ok(format);
    }
    let start = source.read(0, source.bytes().min(8))?;
    Ok(match () {
        () if start.starts_with(npy::MAGIC) => FileFormat::Npy,
        () if start.starts_with(arrow::MAGIC) => FileFormat::ArrowIpc,
        () => FileFormat::Raw,
    })
}

fn name_of(name: Option<&std::ffi::OsStr>) -> String {
    name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
