//! The options of a buffer.

use std::fmt;
use std::str::FromStr;

use crate::error::{Bytes, Error, Result};
use hostbuf_memory::Pages;
use hostbuf_memory::space::Demand;
use hostbuf_protocol::environment::variable_byte;
use hostbuf_protocol::limits::{MAX_BUFFERS, NAME_MAX};

/// The name of a buffer if none is requested.
pub const DEFAULT_NAME: &str = "default";

/// The options of one buffer, for [`HostBuffer::allocate`](crate::HostBuffer::allocate) and
/// `hostbuf run`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BufferOptions {
    /// The number of usable bytes, rounded up to whole pages of the obtained size.
    pub size: u64,
    /// The kind of pages.
    pub pages: Pages,
    /// Allocate pages at the first touch. There is then no check that the memory is available, and
    /// a process is killed, by SIGBUS or otherwise, if it is not. By default all pages are
    /// allocated at creation.
    pub lazy: bool,
    /// Include the contents in core files.
    pub dump: bool,
    /// The name: at most 31 bytes of letters, digits, `_`, `-` and `.`.
    pub name: String,
    /// Flags passed to `mmap` in addition to `MAP_SHARED | MAP_FIXED`: `MAP_LOCKED`,
    /// `MAP_POPULATE`, `MAP_NONBLOCK`.
    pub mmap_flags: i32,
}

impl BufferOptions {
    /// Makes the options of a buffer of `size` bytes, with defaults for all others.
    #[must_use]
    pub fn new(size: u64) -> BufferOptions {
        let name = DEFAULT_NAME.into();
        BufferOptions { size, pages: Pages::Auto, lazy: false, dump: false, name, mmap_flags: 0 }
    }

    /// Sets the kind of pages.
    #[must_use]
    pub fn pages(mut self, pages: Pages) -> BufferOptions {
        self.pages = pages;
        self
    }

    /// Leaves the allocation of the pages to the first touch.
    #[must_use]
    pub fn lazy(mut self) -> BufferOptions {
        self.lazy = true;
        self
    }

    /// Includes the contents in core files.
    #[must_use]
    pub fn dump(mut self) -> BufferOptions {
        self.dump = true;
        self
    }

    /// Sets the name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> BufferOptions {
        self.name = name.into();
        self
    }

    /// Sets additional flags for `mmap`.
    #[must_use]
    pub fn mmap_flags(mut self, flags: i32) -> BufferOptions {
        self.mmap_flags = flags;
        self
    }

    /// Returns the memory that the buffer needs.
    #[must_use]
    pub fn demand(&self) -> Demand {
        Demand::new(self.size, self.pages).lazy(self.lazy)
    }

    /// Checks the options.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a size of 0 or one beyond any address space, an invalid name, or a
    /// flag that would undo the sharing or the address.
    pub fn check(&self) -> Result<()> {
        if self.size == 0 {
            return Err(Error::invalid("size 0: a buffer has at least one byte"));
        }
        if self.size > MAX_SIZE {
            let (asked, most) = (Bytes(self.size), Bytes(MAX_SIZE));
            return Err(Error::invalid(format!("size {asked}: the address space holds at most {most}")));
        }
        let letters = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if self.name.is_empty() || self.name.len() > NAME_MAX || !self.name.chars().all(letters) {
            let begin: String = self.name.escape_debug().take(2 * NAME_MAX).collect();
            let more = if begin.len() < self.name.len() { "..." } else { "" };
            return Err(Error::invalid(format!(
                "invalid name \"{begin}{more}\": expected 1 to {NAME_MAX} letters, digits, '_', '-' or '.'"
            )));
        }
        let allowed = libc::MAP_LOCKED | libc::MAP_POPULATE | libc::MAP_NONBLOCK;
        if self.mmap_flags & !allowed != 0 {
            return Err(Error::invalid(format!(
                "invalid mmap flags {:#x}: expected MAP_LOCKED, MAP_POPULATE or MAP_NONBLOCK",
                self.mmap_flags
            )));
        }
        Ok(())
    }
}

/// The maximum sum of all buffers: the largest range that can be free in user space, between the
/// mappings at fixed addresses.
pub const MAX_SIZE: u64 = 100 << 40;

/// Checks the options of all buffers of a job.
///
/// # Errors
/// As [`BufferOptions::check`] for each; [`Error::Invalid`] for no buffers, too many, two with one
/// name, or a sum that is too large.
pub fn check_all(buffers: &[BufferOptions]) -> Result<()> {
    if buffers.is_empty() || buffers.len() > MAX_BUFFERS {
        return Err(Error::invalid(format!("{} buffers: expected 1 to {MAX_BUFFERS}", buffers.len())));
    }
    for (i, buffer) in buffers.iter().enumerate() {
        buffer.check()?;
        if buffers[..i].iter().any(|b| b.name == buffer.name) {
            return Err(Error::invalid(format!("two buffers are named \"{}\"", buffer.name)));
        }
        let variable =
            |b: &BufferOptions| b.name.bytes().map(variable_byte).map(char::from).collect::<String>();
        let own = variable(buffer);
        if let Some(other) = buffers[..i].iter().find(|b| variable(b) == own) {
            return Err(Error::invalid(format!(
                "buffers \"{}\" and \"{}\" have the same environment variable HOSTBUF_ADDRESS_{own}: rename one of them",
                other.name, buffer.name
            )));
        }
    }
    let sum = buffers.iter().map(|b| b.size).fold(0u64, u64::saturating_add);
    if sum > MAX_SIZE {
        let (asked, most) = (Bytes(sum), Bytes(MAX_SIZE));
        return Err(Error::invalid(format!(
            "the sizes add up to {asked}: the address space holds at most {most}"
        )));
    }
    Ok(())
}

/// Parses the command line syntax of a buffer: `name=index,size=2G,pages=2m,lazy,dump`.
impl FromStr for BufferOptions {
    type Err = Error;

    fn from_str(text: &str) -> Result<BufferOptions> {
        let mut options = BufferOptions::new(0);
        let mut sized = false;
        for part in text.split(',') {
            match part.split_once('=').unwrap_or((part, "")) {
                ("name", name) => options.name = name.into(),
                ("size", size) => {
                    let invalid = |why| Error::invalid(format!("invalid size \"{size}\": {why}"));
                    options.size = size.parse::<Bytes>().map_err(invalid)?.0;
                    sized = true;
                }
                ("pages", pages) => options.pages = pages.parse()?,
                ("mmap-flags", flags) => {
                    let digits = flags.trim_start_matches("0x");
                    let radix = if digits.len() < flags.len() { 16 } else { 10 };
                    options.mmap_flags = i32::from_str_radix(digits, radix).map_err(|_| {
                        Error::invalid(format!("invalid mmap flags \"{flags}\": expected a number"))
                    })?;
                }
                ("lazy", "") => options.lazy = true,
                ("dump", "") => options.dump = true,
                _ => {
                    return Err(Error::invalid(format!(
                        "unexpected \"{part}\" in buffer \"{text}\": expected name=, size=, pages=, mmap-flags=, lazy or dump"
                    )));
                }
            }
        }
        if !sized {
            return Err(Error::invalid(format!("buffer \"{text}\" has no size=")));
        }
        options.check()?;
        Ok(options)
    }
}

/// Formats the options in the syntax that `from_str` parses.
impl fmt::Display for BufferOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "name={},size={},pages={}", self.name, self.size, self.pages)?;
        if self.mmap_flags != 0 {
            write!(f, ",mmap-flags={:#x}", self.mmap_flags)?;
        }
        f.write_str(if self.lazy { ",lazy" } else { "" })?;
        f.write_str(if self.dump { ",dump" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_parse_from_their_own_output() {
        for text in
            ["name=index,size=2147483648,pages=2m", "name=a,size=1,pages=auto,mmap-flags=0x2000,lazy,dump"]
        {
            assert_eq!(text.parse::<BufferOptions>().unwrap().to_string(), text);
        }
        // Without the prefix 0x the flags are decimal.
        let flags = |text: &str| text.parse::<BufferOptions>().unwrap().mmap_flags;
        assert_eq!(flags("size=1,mmap-flags=8192"), flags("size=1,mmap-flags=0x2000"));
    }

    #[test]
    fn invalid_options_are_rejected_with_the_reason() {
        for (text, word) in [
            ("size=0", "size 0"),
            ("size=200T", "address space"),
            ("size=1P", "invalid size \"1P\": unknown unit P"),
            ("name=x", "no size"),
            ("size=1,name=a b", "name"),
            ("size=1,pages=3m", "pages"),
            ("size=1,colour=red", "colour"),
            ("size=1,mmap-flags=0x10", "mmap flags"),
        ] {
            let error = text.parse::<BufferOptions>().unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
