//! Options of an adopter.

use hostbuf_os::Bytes;

use super::error::AdoptError;

const VARIABLE: &str = "HOSTBUF_ADOPT_BYTES";

/// The options of an [`Adopter`](super::Adopter).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdoptOptions {
    /// The limit on the registered bytes of all files together, as the device counts them.
    pub bytes: usize,
}

impl Default for AdoptOptions {
    fn default() -> AdoptOptions {
        AdoptOptions::new()
    }
}

impl AdoptOptions {
    /// Makes the default options: a budget of 1 GiB.
    #[must_use]
    pub const fn new() -> AdoptOptions {
        AdoptOptions { bytes: 1 << 30 }
    }

    /// Sets the byte budget.
    #[must_use]
    pub const fn bytes(mut self, bytes: usize) -> AdoptOptions {
        self.bytes = bytes;
        self
    }

    /// Reads the byte budget from `HOSTBUF_ADOPT_BYTES`, a size such as `512M` or `2G`.
    ///
    /// # Errors
    /// [`AdoptError::Invalid`] with the variable and its value.
    pub fn from_environment() -> Result<AdoptOptions, AdoptError> {
        match std::env::var_os(VARIABLE) {
            None => Ok(AdoptOptions::new()),
            Some(value) => AdoptOptions::parse(&value.to_string_lossy()),
        }
    }

    fn parse(text: &str) -> Result<AdoptOptions, AdoptError> {
        if text.trim().is_empty() {
            return Ok(AdoptOptions::new());
        }
        let wrong = |why: String| AdoptError::Invalid(format!("invalid {VARIABLE} \"{text}\": {why}"));
        let Bytes(bytes) = text.parse().map_err(wrong)?;
        Ok(AdoptOptions::new().bytes(usize::try_from(bytes).unwrap_or(usize::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_a_size() {
        let bytes = |text| AdoptOptions::parse(text).map(|options| options.bytes);
        assert_eq!((bytes(" ").unwrap(), bytes("64M").unwrap()), (1 << 30, 64 << 20));
        let why = bytes("much").unwrap_err();
        assert_eq!(why.kind(), "Invalid");
        assert!(why.to_string().starts_with("invalid HOSTBUF_ADOPT_BYTES \"much\": expected"), "{why}");
    }
}
