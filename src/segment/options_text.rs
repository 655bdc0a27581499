//! The text of a buffer's options, as command lines contain it.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::segment::fields;
use crate::segment::options::BufferOptions;
use crate::segment::section::{Section, SectionArgument};

/// Parses the command line syntax of a buffer without its sections:
/// `name=index,size=2G,pages=2m,numa=0,1,lazy,dump`. Without `size=` the buffer consists of its
/// sections.
impl FromStr for BufferOptions {
    type Err = Error;

    fn from_str(text: &str) -> Result<BufferOptions> {
        let mut options = BufferOptions::new(0);
        let mut sized = false;
        for (key, value) in fields::unique(text, "buffer")? {
            match (key, value) {
                ("name", name) => options.name = name.into(),
                ("size", size) => (options.size, sized) = (fields::size(size)?, true),
                ("pages", pages) => options.pages = pages.parse()?,
                ("numa", placement) => options.numa = Some(placement.parse()?),
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
                        "unexpected \"{key}\" in buffer \"{text}\": expected name=, size=, pages=, numa=, mmap-flags=, lazy or dump"
                    )));
                }
            }
        }
        // Without a size the buffer consists of its sections, which are not known yet.
        if sized {
            options.check()?;
        }
        Ok(options)
    }
}

impl BufferOptions {
    /// Returns the text of the options with the sections, by which requests are compared.
    #[must_use]
    pub fn request_text(&self) -> String {
        let section = |section: &Section| {
            let argument = SectionArgument { buffer: self.name.clone(), section: section.clone() };
            format!(" --section {argument}")
        };
        self.to_string() + &self.sections.iter().map(section).collect::<String>()
    }
}

/// Formats the options without the sections, in the syntax that `from_str` parses.
impl fmt::Display for BufferOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "name={}", self.name)?;
        if self.size > 0 {
            write!(f, ",size={}", self.size)?;
        }
        write!(f, ",pages={}", self.pages)?;
        self.numa.iter().try_for_each(|placement| write!(f, ",numa={placement}"))?;
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
        for text in [
            "name=index,size=2147483648,pages=2m",
            "name=a,size=1,pages=auto,mmap-flags=0x2000,lazy,dump",
            "name=b,pages=4k,numa=interleave:0,2/1,3",
        ] {
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
            ("size=1,numa=near", "invalid placement \"near\""),
            ("size=1,numa=0,lazy", "is lazy and has a placement"),
            ("size=1,name=a b", "name"),
            ("size=1,pages=3m", "pages"),
            ("size=1,colour=red", "colour"),
            (
                "size=1,name=a,name=b",
                "\"name\" is given twice in buffer \"size=1,name=a,name=b\": give it once",
            ),
            ("size=1,size=1", "\"size\" is given twice"),
            ("size=1,lazy,lazy", "\"lazy\" is given twice"),
            ("size=1,numa=0,1,numa=2", "\"numa\" is given twice"),
            ("size=1,mmap-flags=0x10", "mmap flags"),
        ] {
            let error = text.parse::<BufferOptions>().unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
