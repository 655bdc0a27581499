//! Texts without an allocator.

use core::fmt::{self, Write};

use hostbuf_protocol::failure::cut;
use hostbuf_protocol::limits::{REPORT_MAX, TEXT_MAX};
use hostbuf_raw::syscall as raw;

/// The largest length of a short text in bytes: a number, a name of a descriptor, or the value of
/// [`ENV_REPORT`](hostbuf_protocol::environment::ENV_REPORT).
pub(crate) const SHORT_MAX: usize = REPORT_MAX;

/// A line for the user.
pub(crate) type Line = Text<TEXT_MAX>;
/// A short text.
pub(crate) type ShortText = Text<SHORT_MAX>;

/// A text under construction. A part that does not fit is cut at the end of a character.
pub(crate) struct Text<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Text<N> {
    pub(crate) fn new(arguments: fmt::Arguments<'_>) -> Text<N> {
        let mut text = Text { bytes: [0; N], length: 0 };
        // Never fails: the part that does not fit is cut.
        let _ = text.write_fmt(arguments);
        text
    }

    /// Appends bytes that come from outside, such as a path. A question mark takes the place of
    /// each part that is not UTF-8.
    pub(crate) fn and(mut self, more: &[u8]) -> Text<N> {
        for chunk in more.utf8_chunks() {
            let _ = self.write_str(chunk.valid());
            if !chunk.invalid().is_empty() {
                let _ = self.write_str("?");
            }
        }
        self
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    pub(crate) fn text(&self) -> &str {
        core::str::from_utf8(self.bytes()).unwrap_or_default()
    }
}

impl Line {
    /// Prints the line to standard error, with a newline, in one write.
    pub(crate) fn say(&self) {
        let mut out = [b'\n'; TEXT_MAX + 1];
        out[..self.length].copy_from_slice(self.bytes());
        raw::write(2, &out[..=self.length]);
    }
}

impl<const N: usize> Write for Text<N> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let fitting = cut(s, N - self.length).as_bytes();
        self.bytes[self.length..][..fitting.len()].copy_from_slice(fitting);
        self.length += fitting.len();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_at_the_end_of_a_character() {
        let text = Text::<5>::new(format_args!("abc")).and("éé".as_bytes());
        assert_eq!(text.text(), "abcé");
        assert_eq!(text.and(b"x").text(), "abcé");
    }

    #[test]
    fn bytes_that_are_not_utf8_become_question_marks() {
        assert_eq!(ShortText::new(format_args!("")).and(b"/tmp/\xff\xfe/x").text(), "/tmp/??/x");
    }
}
