//! The backend by which a file is read and written.

use std::fmt;
use std::str::FromStr;

/// The backend by which a file is read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// The backend that is faster for the file system and for what is in the page cache now.
    #[default]
    Auto,
    /// Through the page cache.
    Posix,
    /// Bypasses the page cache (`O_DIRECT`). Parts that are not aligned go through the page cache.
    Direct,
    /// By io_uring, with several operations at a time in each thread, bypassing the page cache if
    /// the file system allows it. The slots of a ring are fixed buffers.
    Uring,
    /// Reads and writes copy through a mapping, for files on tmpfs that nobody truncates or punches
    /// holes into: an access beyond the end raises SIGBUS, which ends the process. Where the file
    /// cannot be mapped for writing, writes use `pwrite`.
    Mmap,
}

impl Backend {
    /// All backends.
    pub const ALL: &'static [Backend] =
        &[Backend::Auto, Backend::Posix, Backend::Direct, Backend::Uring, Backend::Mmap];

    fn name(self) -> &'static str {
        match self {
            Backend::Auto => "auto",
            Backend::Posix => "posix",
            Backend::Direct => "direct",
            Backend::Uring => "uring",
            Backend::Mmap => "mmap",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Backend {
    type Err = String;

    /// Parses `auto`, `posix`, `direct`, `uring` or `mmap`.
    fn from_str(text: &str) -> Result<Backend, String> {
        let found = Backend::ALL.iter().copied().find(|backend| backend.name() == text);
        let why = match text {
            "cufile" => "cuFile needs no ring and is available only through the Rust type CuFile; ",
            _ => "",
        };
        let expected = "expected auto, posix, direct, uring or mmap";
        found.ok_or_else(|| format!("invalid backend \"{text}\": {why}{expected}"))
    }
}

/// The backend that was chosen for a file, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackendChoice {
    /// The backend, which is not [`Backend::Auto`].
    pub backend: Backend,
    /// The reason.
    pub why: String,
}

impl fmt::Display for BackendChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.backend, self.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        for &backend in Backend::ALL {
            assert_eq!(backend.to_string().parse(), Ok(backend));
        }
        let error = "gds".parse::<Backend>().unwrap_err();
        assert!(Backend::ALL.iter().all(|backend| error.contains(backend.name())), "{error}");
        assert!(!error.contains("cufile"), "{error}");
        // It moves bytes without a ring, so no file can have it.
        let error = "cufile".parse::<Backend>().unwrap_err();
        assert!(error.contains("only through the Rust type CuFile; expected auto"), "{error}");
    }
}
