//! The names of buffers and sections.

use crate::error::{Error, Result};
use hostbuf_protocol::limits::NAME_MAX;

/// Checks a name: 1 to 31 letters, digits, `_`, `-` or `.`.
///
/// # Errors
/// [`Error::Invalid`], with the beginning of a long name.
pub(super) fn check(name: &str) -> Result<()> {
    let letters = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if !name.is_empty() && name.len() <= NAME_MAX && name.chars().all(letters) {
        return Ok(());
    }
    let begin: String = name.escape_debug().take(2 * NAME_MAX).collect();
    let more = if begin.len() < name.len() { "..." } else { "" };
    Err(Error::invalid(format!(
        "invalid name \"{begin}{more}\": expected 1 to {NAME_MAX} letters, digits, '_', '-' or '.'"
    )))
}
