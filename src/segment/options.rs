//! What a user asks for.

use std::fmt;
use std::str::FromStr;

use crate::error::{Bytes, Error, Result};
use hostbuf_memory::Pages;
use hostbuf_memory::space::Demand;
use hostbuf_protocol::wire::MAX_BUFFERS;

/// The longest name of a buffer, bytes.
pub const NAME_MAX: usize = 31;
/// The name of a buffer that was given none.
pub const DEFAULT_NAME: &str = "default";

/// One buffer: what [`HostBuffer::allocate`](crate::HostBuffer::allocate) and `hostbuf run` are
/// asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferOptions {
    /// Bytes that the user can use; rounded up to whole pages of what is obtained.
    pub size: u64,
    /// Which pages.
    pub pages: Pages,
    /// Leave pages to be taken at the first touch: no check that they are there, and SIGBUS or a
    /// kill when they are not. Without it all pages are taken at creation.
    pub lazy: bool,
    /// Let the contents go into core files.
    pub dump: bool,
    /// Name: 31 bytes at most of letters, digits, `_`, `-` and `.`.
    pub name: String,
    /// Flags handed to `mmap` beside `MAP_SHARED | MAP_FIXED`: `MAP_LOCKED`, `MAP_POPULATE`,
    /// `MAP_NONBLOCK`.
    pub mmap_flags: i32,
}

impl BufferOptions {
    /// A buffer of `size` bytes, everything else as by default.
    #[must_use]
    pub fn new(size: u64) -> BufferOptions {
        let name = DEFAULT_NAME.into();
        BufferOptions { size, pages: Pages::Auto, lazy: false, dump: false, name, mmap_flags: 0 }
    }

    /// With these pages.
    #[must_use]
    pub fn pages(mut self, pages: Pages) -> BufferOptions {
        self.pages = pages;
        self
    }

    /// With pages taken at the first touch.
    #[must_use]
    pub fn lazy(mut self) -> BufferOptions {
        self.lazy = true;
        self
    }

    /// With the contents in core files.
    #[must_use]
    pub fn dump(mut self) -> BufferOptions {
        self.dump = true;
        self
    }

    /// With this name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> BufferOptions {
        self.name = name.into();
        self
    }

    /// With these flags for `mmap` as well.
    #[must_use]
    pub fn mmap_flags(mut self, flags: i32) -> BufferOptions {
        self.mmap_flags = flags;
        self
    }

    /// Returns the memory that the buffer needs.
    #[must_use]
    pub fn demand(&self) -> Demand {
        Demand { size: self.size, pages: self.pages, lazy: self.lazy }
    }

    /// # Errors
    /// [`Error::Invalid`] for size 0 or beyond any address space, a bad name, or a flag that would
    /// undo the sharing or the address.
    pub fn check(&self) -> Result<()> {
        if self.size == 0 {
            return Err(Error::invalid("size 0: a buffer has at least one byte"));
        }
        if self.size > MAX_SIZE {
            let (asked, most) = (Bytes(self.size), Bytes(MAX_SIZE));
            return Err(Error::invalid(format!(
                "size {asked}: no address space has room for more than {most}"
            )));
        }
        let letters = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if self.name.is_empty() || self.name.len() > NAME_MAX || !self.name.chars().all(letters) {
            let begin: String = self.name.escape_debug().take(2 * NAME_MAX).collect();
            let more = if begin.len() < self.name.len() { "..." } else { "" };
            return Err(Error::invalid(format!(
                "name \"{begin}{more}\": 1 to {NAME_MAX} letters, digits, '_', '-' or '.' are meant"
            )));
        }
        let allowed = libc::MAP_LOCKED | libc::MAP_POPULATE | libc::MAP_NONBLOCK;
        if self.mmap_flags & !allowed != 0 {
            return Err(Error::invalid(format!(
                "mmap flags {:#x}: only MAP_LOCKED, MAP_POPULATE and MAP_NONBLOCK can be added",
                self.mmap_flags
            )));
        }
        Ok(())
    }
}

/// The largest sum of buffers: what the widest range of user space between its fixed inhabitants
/// could take.
pub const MAX_SIZE: u64 = 100 << 40;

/// # Errors
/// As [`BufferOptions::check`] for each; [`Error::Invalid`] for none, too many, a name that comes twice,
/// or too much in all.
pub fn check_all(buffers: &[BufferOptions]) -> Result<()> {
    if buffers.is_empty() || buffers.len() > MAX_BUFFERS {
        return Err(Error::invalid(format!("{} buffers: 1 to {MAX_BUFFERS} can be had", buffers.len())));
    }
    for (i, buffer) in buffers.iter().enumerate() {
        buffer.check()?;
        if buffers[..i].iter().any(|b| b.name == buffer.name) {
            return Err(Error::invalid(format!("two buffers are named \"{}\"", buffer.name)));
        }
    }
    let sum = buffers.iter().map(|b| b.size).fold(0u64, u64::saturating_add);
    if sum > MAX_SIZE {
        let (asked, most) = (Bytes(sum), Bytes(MAX_SIZE));
        return Err(Error::invalid(format!(
            "{asked} in all: no address space has room for more than {most}"
        )));
    }
    Ok(())
}

/// `name=index,size=2G,pages=2m,lazy,dump`: how a buffer is written on a command line.
impl FromStr for BufferOptions {
    type Err = Error;

    fn from_str(text: &str) -> Result<BufferOptions> {
        let mut options = BufferOptions::new(0);
        let mut sized = false;
        for part in text.split(',') {
            match part.split_once('=').unwrap_or((part, "")) {
                ("name", name) => options.name = name.into(),
                ("size", size) => {
                    options.size = size.parse::<Bytes>().map_err(Error::invalid)?.0;
                    sized = true;
                }
                ("pages", pages) => options.pages = pages.parse()?,
                ("mmap-flags", flags) => {
                    let digits = flags.trim_start_matches("0x");
                    let radix = if digits.len() < flags.len() { 16 } else { 10 };
                    options.mmap_flags = i32::from_str_radix(digits, radix)
                        .map_err(|_| Error::invalid(format!("mmap flags \"{flags}\" are no number")))?;
                }
                ("lazy", "") => options.lazy = true,
                ("dump", "") => options.dump = true,
                _ => {
                    return Err(Error::invalid(format!(
                        "\"{part}\" in buffer \"{text}\": name=, size=, pages=, mmap-flags=, lazy and dump are known"
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

/// The same text again.
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
    fn options_read_what_they_print() {
        for text in
            ["name=index,size=2147483648,pages=2m", "name=a,size=1,pages=auto,mmap-flags=0x2000,lazy,dump"]
        {
            assert_eq!(text.parse::<BufferOptions>().unwrap().to_string(), text);
        }
        // Without 0x the flags are decimal.
        let flags = |text: &str| text.parse::<BufferOptions>().unwrap().mmap_flags;
        assert_eq!(flags("size=1,mmap-flags=8192"), flags("size=1,mmap-flags=0x2000"));
    }

    #[test]
    fn bad_options_say_why() {
        for (text, word) in [
            ("size=0", "size 0"),
            ("size=200T", "address space"),
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
