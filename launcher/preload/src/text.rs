//! One line of text, without an allocator.

use core::fmt::{self, Write};

use hostbuf_protocol::limits::TEXT_MAX;
use hostbuf_raw::syscall as raw;

/// A line under construction. A part that does not fit is cut.
pub(crate) struct Line {
    text: [u8; TEXT_MAX],
    length: usize,
}

impl Line {
    pub(crate) fn new(arguments: fmt::Arguments<'_>) -> Line {
        let mut line = Line { text: [0; TEXT_MAX], length: 0 };
        // Never fails: what does not fit is cut.
        let _ = line.write_fmt(arguments);
        line
    }

    pub(crate) fn and(mut self, more: &[u8]) -> Line {
        let room = self.text.len() - self.length;
        let more = &more[..more.len().min(room)];
        self.text[self.length..][..more.len()].copy_from_slice(more);
        self.length += more.len();
        self
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.text[..self.length]
    }

    /// Prints the line to standard error, with a newline, in one write.
    pub(crate) fn say(&self) {
        let mut out = [b'\n'; TEXT_MAX + 1];
        out[..self.length].copy_from_slice(self.bytes());
        raw::write(2, &out[..=self.length]);
    }
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let room = self.text.len() - self.length;
        let bytes = &s.as_bytes()[..s.len().min(room)];
        self.text[self.length..][..bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
        Ok(())
    }
}

/// Returns the decimal number of which `text` consists.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |value, &b| {
        b.is_ascii_digit().then(|| value.checked_mul(10)?.checked_add(u64::from(b - b'0'))).flatten()
    })
}
