//! Messages of the object on standard error.

use std::io::Write;

/// Prints one line, in one write.
pub(crate) fn say(text: &str) {
    let _ = std::io::stderr().write_all(format!("hostbuf: {text}\n").as_bytes());
}
