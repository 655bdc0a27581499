//! The reasons why tensors cannot be loaded or taken.

use std::fmt;

use hostbuf::Bytes;
use hostbuf_os::printable::printable_name;
use hostbuf_staging::TransferError;

use super::file_error::{FileError, FileProblem};
use crate::slice::SliceError;
use crate::table::InvalidTable;

/// The reason why tensors cannot be loaded or taken.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// A file cannot be loaded.
    File(FileError),
    /// An option is invalid.
    Option {
        /// The option, its value, and the expected values.
        what: String,
    },
    /// The buffer is too small.
    NoRoom {
        /// The name of the buffer.
        buffer: String,
        /// The number of bytes that the files need.
        needed: u64,
        /// The number of bytes that the buffer has left.
        left: u64,
    },
    /// The buffer is filled already.
    Filled {
        /// The name of the buffer.
        buffer: String,
    },
    /// No files were loaded into the buffer.
    NotLoaded {
        /// The name of the buffer.
        buffer: String,
    },
    /// The table of tensors in the buffer is invalid.
    Table(InvalidTable),
    /// The shared state of a load is damaged: a process has overwritten it.
    Damaged,
    /// There is no tensor of this name.
    NoTensor {
        /// The requested name.
        name: String,
        /// The number of tensors that there are.
        tensors: usize,
    },
    /// A tensor has no such slice.
    Slice {
        /// The name of the tensor.
        tensor: String,
        /// The reason.
        source: SliceError,
    },
    /// The memory for a tensor, or for a slice of it, has another length.
    Target {
        /// The name of the tensor.
        tensor: String,
        /// The number of bytes of the slice.
        needed: u64,
        /// The number of bytes of the memory.
        bytes: u64,
    },
    /// A transfer to a device has failed.
    Transfer(TransferError),
    /// Another rank has failed; all other ranks return this.
    Elsewhere {
        /// The host of the rank that failed.
        host: String,
        /// The rank that failed.
        rank: usize,
        /// The kind of its error.
        kind: LoadErrorKind,
        /// The message of its error.
        message: String,
    },
    /// The group of the ranks, or the buffer, has failed.
    Job(hostbuf::Error),
}

/// The kind of an error of loading. All ranks of a load that failed get the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u8)]
pub enum LoadErrorKind {
    /// The kernel refused to open or read a file.
    Io = 1,
    /// A file is damaged, or does not belong to its index.
    Damaged = 2,
    /// The format of a file is not supported.
    Unsupported = 3,
    /// Two tensors have one name.
    Duplicate = 4,
    /// A shard, a tensor, or a table of tensors does not exist.
    Missing = 5,
    /// A file has changed, or differs between ranks.
    Changed = 6,
    /// The buffer, or the memory of a target, has another size or state than needed.
    Memory = 7,
    /// An argument is invalid.
    Argument = 8,
    /// A transfer to a device has failed.
    Transfer = 9,
    /// The group of the ranks, or the buffer, has failed.
    Job = 10,
}

impl LoadErrorKind {
    /// Returns the kind with this number; [`Job`](LoadErrorKind::Job) for a number of no kind.
    pub(super) fn from_code(code: u8) -> LoadErrorKind {
        use LoadErrorKind::{
            Argument, Changed, Damaged, Duplicate, Io, Job, Memory, Missing, Transfer, Unsupported,
        };
        let all = [Io, Damaged, Unsupported, Duplicate, Missing, Changed, Memory, Argument, Transfer];
        all.into_iter().find(|&kind| kind as u8 == code).unwrap_or(Job)
    }
}

impl LoadError {
    /// Returns the kind of the error, which is the same on all ranks.
    #[must_use]
    pub fn kind(&self) -> LoadErrorKind {
        match self {
            LoadError::File(error) => match error.problem {
                FileProblem::Io { .. } => LoadErrorKind::Io,
                FileProblem::Header { .. }
                | FileProblem::OutOfBounds { .. }
                | FileProblem::Empty
                | FileProblem::LfsPointer
                | FileProblem::Page => LoadErrorKind::Damaged,
                FileProblem::Unsupported { .. } => LoadErrorKind::Unsupported,
                FileProblem::NamedTwice { .. }
                | FileProblem::DuplicateTensor { .. }
                | FileProblem::TwoForms { .. } => LoadErrorKind::Duplicate,
                FileProblem::MissingShard { .. }
                | FileProblem::MissingTensor { .. }
                | FileProblem::EmptyFolder => LoadErrorKind::Missing,
                FileProblem::Changed { .. } | FileProblem::OtherVersion { .. } => LoadErrorKind::Changed,
                FileProblem::NoPaths => LoadErrorKind::Argument,
            },
            LoadError::Option { .. } | LoadError::Slice { .. } => LoadErrorKind::Argument,
            LoadError::NoRoom { .. } | LoadError::Filled { .. } | LoadError::Target { .. } => {
                LoadErrorKind::Memory
            }
            LoadError::NotLoaded { .. } | LoadError::NoTensor { .. } => LoadErrorKind::Missing,
            LoadError::Table(_) | LoadError::Damaged => LoadErrorKind::Damaged,
            LoadError::Transfer(_) => LoadErrorKind::Transfer,
            LoadError::Elsewhere { kind, .. } => *kind,
            LoadError::Job(_) => LoadErrorKind::Job,
        }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::File(error) => error.fmt(f),
            LoadError::Option { what } => f.write_str(what),
            LoadError::NoRoom { buffer, needed, left } => write!(
                f,
                "the files need {} ({needed} bytes), and buffer \"{buffer}\" has {} ({left} bytes) left: make it larger (--size, or \
                 LoadOptions::buffer_bytes), or use a new one if a load into it has failed",
                Bytes(*needed),
                Bytes(*left)
            ),
            LoadError::Filled { buffer } => write!(
                f,
                "buffer \"{buffer}\" is filled already, and a buffer is filled once: load the files into another buffer"
            ),
            LoadError::NotLoaded { buffer } => {
                write!(f, "no files were loaded into buffer \"{buffer}\": load them first")
            }
            LoadError::Table(error) => error.fmt(f),
            LoadError::Damaged => f.write_str(
                "the state of the load is damaged: a process has written into the buffer meanwhile; end that process and load again",
            ),
            LoadError::NoTensor { name, tensors } => {
                let name = printable_name(name);
                write!(f, "there is no tensor \"{name}\" among the {tensors} of the files: check its name")
            }
            LoadError::Slice { tensor, source } => {
                write!(f, "tensor \"{}\": {source}", printable_name(tensor))
            }
            LoadError::Target { tensor, needed, bytes } => write!(
                f,
                "the memory for tensor \"{}\" has {bytes} bytes, and {needed} are needed: allocate exactly as many",
                printable_name(tensor)
            ),
            LoadError::Transfer(error) => error.fmt(f),
            LoadError::Elsewhere { host, rank, message, .. } => write!(f, "rank {rank} on {host}: {message}"),
            LoadError::Job(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LoadError::File(error) => Some(error),
            LoadError::Table(error) => Some(error),
            LoadError::Slice { source, .. } => Some(source),
            LoadError::Transfer(error) => Some(error),
            LoadError::Job(error) => Some(error),
            _ => None,
        }
    }
}

impl From<FileError> for LoadError {
    fn from(error: FileError) -> LoadError {
        LoadError::File(error)
    }
}

impl From<InvalidTable> for LoadError {
    fn from(error: InvalidTable) -> LoadError {
        LoadError::Table(error)
    }
}

impl From<TransferError> for LoadError {
    fn from(error: TransferError) -> LoadError {
        LoadError::Transfer(error)
    }
}

impl From<hostbuf::Error> for LoadError {
    fn from(error: hostbuf::Error) -> LoadError {
        LoadError::Job(error)
    }
}
