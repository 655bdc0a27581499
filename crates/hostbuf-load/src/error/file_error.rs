//! The reasons why a file cannot be loaded.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use hostbuf_os::printable::{printable, printable_name, printable_path};
use hostbuf_staging::OpenError;

use crate::table::FileVersion;

/// A file that cannot be loaded, and the reason.
#[derive(Debug)]
#[non_exhaustive]
pub struct FileError {
    /// The path of the file.
    pub path: PathBuf,
    /// The reason.
    pub problem: FileProblem,
}

/// The reason why a file cannot be loaded.
#[derive(Debug)]
#[non_exhaustive]
pub enum FileProblem {
    /// The kernel reports an error.
    Io {
        /// The failed operation.
        doing: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The header states something that is not there.
    Header {
        /// The statement of the header.
        stated: String,
        /// The contents of the file.
        found: String,
    },
    /// The file has no bytes.
    Empty,
    /// The file is a pointer of Git LFS, not the file itself.
    LfsPointer,
    /// The file is a page of a server, of HTML or XML, not the file itself.
    Page,
    /// A tensor ends beyond the end of the file.
    OutOfBounds {
        /// The name of the tensor.
        tensor: String,
        /// The offset of its end in the file, or [`u64::MAX`] if no file can have it.
        end: u64,
        /// The number of bytes of the file.
        bytes: u64,
    },
    /// The file is valid, and hostbuf does not load its contents.
    Unsupported {
        /// The contents.
        what: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// The header of the file names a tensor twice.
    NamedTwice {
        /// The name.
        tensor: String,
    },
    /// Another file has a tensor of the same name.
    DuplicateTensor {
        /// The name.
        tensor: String,
        /// The path of the file with the first tensor of that name.
        first: PathBuf,
    },
    /// A folder without an index has the file, which is of Mistral's form, besides files of another
    /// form.
    TwoForms {
        /// The path of the first file of the other form.
        other: PathBuf,
    },
    /// An index names the file as a shard, and the file does not exist.
    MissingShard {
        /// The path of the index.
        index: PathBuf,
    },
    /// An index states that the file has a tensor, and the file does not have it.
    MissingTensor {
        /// The name of the tensor.
        tensor: String,
        /// The path of the index.
        index: PathBuf,
    },
    /// A folder has no file of a known format.
    EmptyFolder,
    /// No file is named. The path is empty.
    NoPaths,
    /// The file has changed while it was loaded.
    Changed {
        /// The file before it was read.
        before: FileVersion,
        /// The file afterwards.
        after: FileVersion,
    },
    /// The file of this rank differs from the file of the first rank.
    OtherVersion {
        /// The file of the first rank.
        first: FileVersion,
        /// The file of this rank.
        own: FileVersion,
    },
}

impl FileProblem {
    /// Makes the error of a header.
    pub(crate) fn header(stated: impl Into<String>, found: impl Into<String>) -> FileProblem {
        FileProblem::Header { stated: stated.into(), found: found.into() }
    }

    /// Makes the error of a failed operation.
    pub(crate) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> FileProblem {
        move |source| FileProblem::Io { doing, source }
    }

    /// Makes the error of a file that was opened by [`hostbuf_staging::File`], whose errors name
    /// the path already.
    pub(crate) fn opening(error: io::Error, path: &Path) -> FileError {
        let source = error.downcast::<OpenError>().map_or_else(|error| error, |opened| opened.source);
        FileProblem::Io { doing: "opening", source }.at(path)
    }

    /// Makes the error of the file at `path`.
    pub(crate) fn at(self, path: impl AsRef<Path>) -> FileError {
        FileError { path: path.as_ref().to_owned(), problem: self }
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = printable_path(&self.path);
        // Names come from the files.
        let name = printable_name;
        match &self.problem {
            FileProblem::Io { doing, source } => {
                write!(f, "{doing} {path}: {}", printable(&source.to_string()))
            }
            FileProblem::Header { stated, found } => {
                write!(f, "{path} is damaged: {stated}, but {found}. Copy or write the file again")
            }
            FileProblem::Empty => write!(f, "{path} is empty: copy or write the file again"),
            FileProblem::LfsPointer => write!(
                f,
                "{path} is a Git LFS pointer, not the file itself: run `git lfs pull` in its repository"
            ),
            FileProblem::Page => write!(
                f,
                "{path} is an HTML or XML page, such as that of a login or an error, not the file itself: download it again"
            ),
            // The end is beyond all numbers.
            FileProblem::OutOfBounds { tensor, end: u64::MAX, bytes } => write!(
                f,
                "{path} is damaged: the shape of tensor \"{}\" needs 2^64 bytes or more, but the file has {bytes} bytes. Copy or write \
                 the file again",
                name(tensor)
            ),
            FileProblem::OutOfBounds { tensor, end, bytes } => write!(
                f,
                "{path} is damaged: tensor \"{}\" ends at byte {end}, but the file has {bytes} bytes. Copy or write the file \
                 again",
                name(tensor)
            ),
            FileProblem::Unsupported { what, remedy } => {
                write!(f, "{path} cannot be loaded: it has {what}. {remedy}")
            }
            FileProblem::NamedTwice { tensor } => write!(
                f,
                "{path} is damaged: its header names tensor \"{}\" twice. Write the file with different names",
                name(tensor)
            ),
            FileProblem::DuplicateTensor { first, .. } if *first == self.path => {
                write!(f, "{path} is named twice, by itself, by its index or by its folder: name it once")
            }
            FileProblem::DuplicateTensor { tensor, first } => write!(
                f,
                "{path} has a tensor \"{}\", and so has {}: load them into two buffers, or rename one of the tensors",
                name(tensor),
                printable_path(first)
            ),
            FileProblem::TwoForms { other } => write!(
                f,
                "{path} and {} usually hold the same weights in two formats, and loading a folder loads all its files: name the \
                 files to load",
                printable_path(other)
            ),
            FileProblem::MissingShard { index } => write!(
                f,
                "{path} does not exist, and {} names it as a shard: copy the shard into the folder of the index",
                printable_path(index)
            ),
            FileProblem::MissingTensor { tensor, index } => write!(
                f,
                "{path} has no tensor \"{}\", but {} states that it does. The index and the shards are of different versions: \
                 copy all of them again",
                name(tensor),
                printable_path(index)
            ),
            FileProblem::EmptyFolder => write!(
                f,
                "{path} has neither an index (*.safetensors.index.json) nor a file *.safetensors, *.npy, *.arrow or *.feather: name \
                 the files themselves"
            ),
            FileProblem::NoPaths => f.write_str("no file is named: name at least one file, folder or index"),
            FileProblem::Changed { before, after } => write!(
                f,
                "{path} has changed while it was loaded (before: {before}; after: {after}): load it again once it is complete"
            ),
            FileProblem::OtherVersion { first, own } => write!(
                f,
                "{path} is not the file whose header was read (there: {first}; here: {own}): load it again once it is complete; several \
                 hosts need a shared file system, or copies with the same times (cp --preserve, rsync --times)"
            ),
        }
    }
}

impl std::error::Error for FileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.problem {
            FileProblem::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
