//! Variables of the environment that people set.

use crate::error::{Error, Result};

/// What a variable says; none when it is not set, or says nothing.
///
/// # Errors
/// [`Error::Invalid`] when it is no text.
pub fn text(name: &str) -> Result<Option<String>> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.trim().is_empty())),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(value)) => {
            Err(Error::invalid(format!("{name} is {value:?}, which is no text")))
        }
    }
}
