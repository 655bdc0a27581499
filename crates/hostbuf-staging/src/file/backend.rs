//! The way in which a file is read and written.

use std::fmt;
use std::str::FromStr;

/// The way in which a file is read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// The way that is faster for the file system and for what is in the page cache now.
    #[default]
    Auto,
    /// Through the page cache.
    Posix,
    /// Past the page cache (`O_DIRECT`). Parts that are not aligned go through the page cache.
    Direct,
}

impl Backend {
    fn name(self) -> &'static str {
        match self {
            Backend::Auto => "auto",
            Backend::Posix => "posix",
            Backend::Direct => "direct",
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

    /// Parses `auto`, `posix` or `direct`.
    fn from_str(text: &str) -> Result<Backend, String> {
        let all = [Backend::Auto, Backend::Posix, Backend::Direct];
        let found = all.into_iter().find(|backend| backend.name() == text);
        found.ok_or_else(|| format!("invalid backend \"{text}\": expected auto, posix or direct"))
    }
}

/// The way that was chosen for a file, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackendChoice {
    /// The way, which is not [`Backend::Auto`].
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
        for backend in [Backend::Auto, Backend::Posix, Backend::Direct] {
            assert_eq!(backend.to_string().parse(), Ok(backend));
        }
        assert!("gds".parse::<Backend>().unwrap_err().contains("expected auto, posix or direct"));
    }
}
