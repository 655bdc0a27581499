//! A failed system call.

use std::{fmt, io};

/// An operation that the kernel has refused.
#[derive(Debug)]
#[non_exhaustive]
pub struct Error {
    /// The failed operation, with its operands.
    pub doing: String,
    /// The kernel's error.
    pub source: io::Error,
}

impl Error {
    /// Makes an error from the kernel's error and the description of the operation.
    pub fn of<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> Error {
        let doing = doing.into();
        move |source| Error { doing, source: source.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, &self.doing, &self.source)
    }
}

/// Formats an operation and the kernel's error, with the remedy if it is a limit of the process.
///
/// # Errors
/// Only those of the formatter.
pub fn describe(f: &mut fmt::Formatter<'_>, doing: &str, source: &io::Error) -> fmt::Result {
    write!(f, "{doing}: {source}")?;
    f.write_str(match source.raw_os_error() {
        Some(libc::EMFILE) => ". Raise `ulimit -n`",
        _ => "",
    })
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}
