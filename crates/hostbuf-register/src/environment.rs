//! Environment variables that the user sets.

use crate::error::{Error, Result};

/// Returns the value of a variable, or `None` if it is not set or blank.
///
/// # Errors
/// [`Error::Invalid`] if the value is not UTF-8.
pub fn text(name: &str) -> Result<Option<String>> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.trim().is_empty())),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(value)) => {
            Err(Error::invalid(format!("{name} is {value:?}, which is not valid UTF-8")))
        }
    }
}
