//! The reasons why memory is not adopted.

use std::fmt;

use hostbuf_os::Bytes;
use hostbuf_register::{InvalidSpan, Span};

/// The reason why memory was not adopted. The message of each variant names the remedy; a copy of
/// the bytes into registered memory always works.
#[derive(Debug)]
#[non_exhaustive]
pub enum AdoptError {
    /// A part of the range is not mapped.
    NotMapped {
        /// The range.
        span: Span,
        /// The first address that is not mapped.
        hole: usize,
    },
    /// The range lies in memory of this process alone: anonymous memory, or a private mapping of a
    /// file.
    Private {
        /// The range.
        span: Span,
        /// The address of the first private byte.
        at: usize,
        /// True for a private mapping of a file.
        file: bool,
    },
    /// The range lies in several mappings that do not show consecutive parts of one file.
    Discontiguous {
        /// The range.
        span: Span,
        /// The address at which another part or another file begins.
        at: usize,
    },
    /// The file is not in memory but on a disk or a device.
    OnDisk {
        /// The range.
        span: Span,
        /// The name of the file as the kernel lists it.
        name: String,
    },
    /// The file cannot be opened: no descriptor of this process refers to it, and its name is
    /// missing or belongs to another file.
    Unnamed {
        /// The range.
        span: Span,
        /// The name of the file as the kernel lists it.
        name: String,
        /// The result of the last attempt to open it.
        why: String,
    },
    /// A device would write to memory that this process may only read.
    ReadOnly {
        /// The range.
        span: Span,
        /// The name of the file as the kernel lists it.
        name: String,
        /// The obstacle.
        why: String,
    },
    /// The file ends before the range does.
    Truncated {
        /// The range.
        span: Span,
        /// The number of bytes that the file would need.
        needed: u64,
        /// The size of the file in bytes.
        size: u64,
    },
    /// The byte budget has no room for the file.
    Budget {
        /// The range.
        span: Span,
        /// The number of bytes of the file that would be registered.
        requested: usize,
        /// The budget in bytes.
        budget: usize,
        /// The number of registered bytes that are held.
        held: usize,
        /// The number of registered files that are held.
        segments: usize,
    },
    /// The range lies in a pool, whose broker counts its memory: adopted, the memory would outlive
    /// its end in the pool.
    PoolBlock {
        /// The range.
        span: Span,
    },
    /// The device refuses the registration, or cannot be opened.
    Registration(hostbuf_register::Error),
    /// The kernel refuses an operation.
    Os(hostbuf_os::Error),
    /// An option or an environment variable is invalid.
    Invalid(String),
    /// The adopter belongs to the parent of this process.
    Forked,
}

impl AdoptError {
    /// Returns the variant's name, for logs and for other languages.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            AdoptError::NotMapped { .. } => "NotMapped",
            AdoptError::Private { .. } => "Private",
            AdoptError::Discontiguous { .. } => "Discontiguous",
            AdoptError::OnDisk { .. } => "OnDisk",
            AdoptError::Unnamed { .. } => "Unnamed",
            AdoptError::ReadOnly { .. } => "ReadOnly",
            AdoptError::Truncated { .. } => "Truncated",
            AdoptError::Budget { .. } => "Budget",
            AdoptError::PoolBlock { .. } => "PoolBlock",
            AdoptError::Registration(error) => error.kind(),
            AdoptError::Os(_) => "Os",
            AdoptError::Invalid(_) => "Invalid",
            AdoptError::Forked => "Forked",
        }
    }
}

impl fmt::Display for AdoptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const COPY: &str = "copy the bytes to registered memory";
        match self {
            AdoptError::NotMapped { span, hole } => {
                write!(f, "{span} cannot be adopted: nothing is mapped at {hole:#x}")
            }
            AdoptError::Private { span, at, file } => {
                let kind = if *file { "a private mapping of a file" } else { "private memory of this process" };
                write!(
                    f,
                    "{span} cannot be adopted: {at:#x} lies in {kind}, not in shared memory; {COPY}, or use hostbuf's \
                     registration cache"
                )
            }
            AdoptError::Discontiguous { span, at } => write!(
                f,
                "{span} cannot be adopted: at {at:#x} begins another file, or another part of the file; adopt the parts on \
                 their own"
            ),
            AdoptError::OnDisk { span, name } => write!(
                f,
                "{span} cannot be adopted: it shows \"{name}\", which is not a file in memory (tmpfs, memfd, hugetlbfs); {COPY}"
            ),
            AdoptError::Unnamed { span, name, why } => write!(
                f,
                "{span} cannot be adopted: its file \"{name}\" cannot be opened again: {why}. Keep a descriptor of the file open, \
                 keep its name, give this process CAP_CHECKPOINT_RESTORE, or {COPY}"
            ),
            AdoptError::ReadOnly { span, name, why } => {
                write!(f, "{span} of \"{name}\" cannot be adopted for writing: {why}; adopt it for reading")
            }
            AdoptError::Truncated { span, needed, size } => {
                let (needed, size) = (Bytes(*needed), Bytes(*size));
                write!(
                    f,
                    "{span} cannot be adopted: its file was truncated to {size}, and the range ends at {needed}; the owner of the \
                     file must not truncate it"
                )
            }
            AdoptError::Budget { span, requested, budget, held, segments } => {
                let bytes = |n: &usize| Bytes(*n as u64);
                let (requested, budget, held) = (bytes(requested), bytes(budget), bytes(held));
                let files = if *segments == 1 { "file in use holds" } else { "files in use hold" };
                write!(
                    f,
                    "{span} cannot be adopted: its file needs {requested} of a budget of {budget}, of which {segments} {files} {held}; \
                     release adopted arrays, or raise HOSTBUF_ADOPT_BYTES"
                )
            }
            AdoptError::PoolBlock { span } => {
                write!(f, "{span} cannot be adopted: it lies in a block of a pool; use the method dma of the block")
            }
            AdoptError::Registration(error) => {
                error.fmt(f)?;
                match error {
                    hostbuf_register::Error::Registration { access, .. } if !access.writes() => write!(
                        f,
                        ". For adopted memory: {COPY}, or adopt it for writing if only read-only memory is refused"
                    ),
                    _ => Ok(()),
                }
            }
            AdoptError::Os(error) => error.fmt(f),
            AdoptError::Invalid(what) => f.write_str(what),
            AdoptError::Forked => f.write_str(
                "this process is a forked child, and adopted memory is not inherited: make a new adopter in the child",
            ),
        }
    }
}

impl std::error::Error for AdoptError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            AdoptError::Registration(error) => Some(error),
            AdoptError::Os(error) => Some(error),
            _ => None,
        }
    }
}

impl From<hostbuf_register::Error> for AdoptError {
    fn from(error: hostbuf_register::Error) -> AdoptError {
        match error {
            hostbuf_register::Error::Forked => AdoptError::Forked,
            other => AdoptError::Registration(other),
        }
    }
}

impl From<InvalidSpan> for AdoptError {
    fn from(invalid: InvalidSpan) -> AdoptError {
        AdoptError::Invalid(invalid.to_string())
    }
}

impl From<hostbuf_os::Error> for AdoptError {
    fn from(error: hostbuf_os::Error) -> AdoptError {
        AdoptError::Os(error)
    }
}
