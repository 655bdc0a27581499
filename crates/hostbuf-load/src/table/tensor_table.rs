//! The table of tensors of a set of files.

use std::collections::HashMap;
use std::path::Path;

use hostbuf_staging::{Backend, FileOptions, ReadAt};

use super::file_version::FileVersion;
use super::name_index::NameIndex;
use super::region_layout;
use super::source_file::SourceFile;
use super::tensor_entry::TensorEntry;
use crate::error::{FileError, FileProblem};
use crate::format::{FileFormat, FileHeader};
use crate::shards::{self, ShardIndex};

/// The table of tensors of a set of files: name, type, shape, file and bytes of each tensor, and
/// the place of each file in one region of a buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TensorTable {
    pub(super) files: Vec<SourceFile>,
    /// The tensors, sorted by name.
    pub(super) tensors: Vec<TensorEntry>,
    pub(super) names: NameIndex,
    pub(super) region_bytes: u64,
    pub(super) header_bytes: u64,
}

impl TensorTable {
    /// Reads the headers of files. A path is a file, an index (`model.safetensors.index.json`), or
    /// a folder: of a folder its index with all shards, or else all files of a known format in the
    /// order of their names. Of a model of Mistral in two forms, the index `consolidated*` does not
    /// count, and without an index both forms are an error.
    ///
    /// # Errors
    /// [`FileError`], which names the file; [`FileProblem::NoPaths`] for no path.
    pub fn read(paths: &[impl AsRef<Path>]) -> Result<TensorTable, FileError> {
        if paths.is_empty() {
            return Err(FileProblem::NoPaths.at(""));
        }
        let mut table = TensorTable::default();
        let mut owners = HashMap::new();
        for path in paths {
            for shards in shards::expand(path.as_ref())? {
                for path in &shards.files {
                    table.add(path, None, shards.index.as_ref(), &mut owners)?;
                }
            }
        }
        table.place()
    }

    /// Reads the header of one file of a format, whatever its name is.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn read_as(format: FileFormat, path: impl AsRef<Path>) -> Result<TensorTable, FileError> {
        let mut table = TensorTable::default();
        table.add(path.as_ref(), Some(format), None, &mut HashMap::new())?;
        table.place()
    }

    /// Sorts the tensors, and gives each file its place in a buffer.
    fn place(mut self) -> Result<TensorTable, FileError> {
        self.tensors.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        self.names = NameIndex::new(&self.tensors);
        let last = self.files.last().map(|file| file.path.clone()).unwrap_or_default();
        self.region_bytes = region_layout::place(&mut self.files).ok_or_else(|| {
            let found = "no memory is that large".to_owned();
            FileProblem::header("the files have more than 2^63 bytes together", found).at(last)
        })?;
        Ok(self)
    }

    /// Adds a file. `owners` has the index of the file of each tensor.
    fn add(
        &mut self,
        path: &Path,
        format: Option<FileFormat>,
        index: Option<&ShardIndex>,
        owners: &mut HashMap<String, usize>,
    ) -> Result<(), FileError> {
        let path = &std::path::absolute(path).map_err(|e| FileProblem::io("finding")(e).at(path))?;
        let problem = |problem: FileProblem| problem.at(path);
        let file = FileOptions::new().backend(Backend::Posix).open(path);
        let file = file.map_err(|error| match (error.kind(), index) {
            (std::io::ErrorKind::NotFound, Some(index)) => {
                problem(FileProblem::MissingShard { index: index.path.clone() })
            }
            _ => FileProblem::opening(error, path),
        })?;
        let metadata = file.as_std().metadata().map_err(|e| problem(FileProblem::io("fstat of")(e)))?;
        if !metadata.is_file() {
            let what = "no bytes of its own: it is not a regular file".to_owned();
            let remedy = "Copy its contents to a file first";
            return Err(problem(FileProblem::Unsupported { what, remedy }));
        }
        let version = FileVersion::of(&metadata);
        // Files of /proc have no length, and bytes all the same.
        if version.bytes == 0 && matches!(file.read_at(&mut [0], 0), Ok(1..)) {
            let what = "no length: the kernel makes its contents while they are read".to_owned();
            return Err(problem(FileProblem::Unsupported {
                what,
                remedy: "Copy its contents to a file first",
            }));
        }
        let (header, bytes_read) = FileHeader::read(path, &file, version.bytes, format).map_err(problem)?;
        self.header_bytes += bytes_read;
        let number = self.files.len();
        let FileHeader { format, data_start, mut tensors, metadata } = header;
        for tensor in &mut tensors {
            tensor.file = number;
            if let Some(first) = owners.insert(tensor.name.clone(), number) {
                let first = self.files.get(first).map_or_else(|| path.clone(), |file| file.path.clone());
                return Err(problem(FileProblem::DuplicateTensor { tensor: tensor.name.clone(), first }));
            }
        }
        if let Some(index) = index {
            let is_missing = |name: &&String| owners.get(*name) != Some(&number);
            if let Some(tensor) = index.tensors_of(path).find(is_missing) {
                let (tensor, index) = (tensor.clone(), index.path.clone());
                return Err(problem(FileProblem::MissingTensor { tensor, index }));
            }
        }
        self.tensors.append(&mut tensors);
        let path = path.clone();
        self.files.push(SourceFile { path, format, version, data_start, region_offset: 0, metadata });
        Ok(())
    }

    /// Returns the files, in the order in which they were named.
    #[must_use]
    pub fn files(&self) -> &[SourceFile] {
        &self.files
    }

    /// Returns the tensors, sorted by name.
    #[must_use]
    pub fn tensors(&self) -> &[TensorEntry] {
        &self.tensors
    }

    /// Returns a tensor.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&TensorEntry> {
        self.names.find(&self.tensors, name)
    }

    /// Returns the number of bytes of all files.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().map(SourceFile::bytes).sum()
    }

    /// Returns the number of bytes from the beginning of the first file in a buffer to the end of
    /// the last.
    #[must_use]
    pub fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    /// Returns the number of bytes that were read for the headers, before the files were loaded.
    #[must_use]
    pub fn header_bytes(&self) -> u64 {
        self.header_bytes
    }

    /// Returns the offset of a tensor in the region of a buffer.
    ///
    /// # Panics
    /// If the tensor is one of another table, and this table has no file of its number. Otherwise
    /// the result is meaningless for such a tensor.
    #[must_use]
    pub fn region_offset(&self, tensor: &TensorEntry) -> u64 {
        self.files[tensor.file].region_offset + tensor.range.start
    }
}

impl AsRef<TensorTable> for TensorTable {
    fn as_ref(&self) -> &TensorTable {
        self
    }
}
