//! The kinds and sizes of pages.

use std::fmt;
use std::str::FromStr;

use hostbuf_os::memory;

use crate::error::{Error, Result};

/// The size in bytes of the huge pages into which the kernel collapses ordinary ones.
pub(crate) const EXTENT: u64 = 2 << 20;

/// The kind of pages of a memory file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pages {
    /// The largest that are available: 1 GiB from the reserved pool, 2 MiB from the reserved pool,
    /// transparent huge pages of 2 MiB, ordinary pages.
    #[default]
    Auto,
    /// Ordinary pages (4 KiB on x86-64).
    Small,
    /// Transparent huge pages of 2 MiB.
    Transparent,
    /// Huge pages of 2 MiB from the reserved pool.
    Huge2M,
    /// Huge pages of 1 GiB from the reserved pool.
    Huge1G,
}

impl Pages {
    /// Returns the size of a page in bytes. For [`Pages::Auto`] this is the alignment that suits
    /// every kind but 1 GiB.
    #[must_use]
    pub fn size(self) -> u64 {
        match self {
            Pages::Small => memory::page_size(),
            Pages::Auto | Pages::Transparent | Pages::Huge2M => 2 << 20,
            Pages::Huge1G => 1 << 30,
        }
    }

    /// Returns the number of this variant, for records in shared memory.
    #[must_use]
    pub fn code(self) -> u64 {
        self as u64
    }

    /// Returns the variant with this number of [`code`](Pages::code).
    #[must_use]
    pub fn from_code(code: u64) -> Option<Pages> {
        [Pages::Auto, Pages::Small, Pages::Transparent, Pages::Huge2M, Pages::Huge1G]
            .into_iter()
            .find(|p| p.code() == code)
    }
}

impl Pages {
    /// Returns `size` bytes rounded up to whole pages.
    #[must_use]
    pub fn round_up(self, size: u64) -> u64 {
        size.next_multiple_of(self.unit(size))
    }

    /// Returns the number of bytes of which `size` is made a multiple. The kind of pages of
    /// [`Pages::Auto`] is not known yet: from 2 MiB on, whole pages of 2 MiB suit every kind but
    /// 1 GiB.
    #[must_use]
    pub fn unit(self, size: u64) -> u64 {
        match self {
            Pages::Auto if size < 2 << 20 => Pages::Small.size(),
            pages => pages.size(),
        }
    }
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pages::Auto => "auto",
            Pages::Small => "4k",
            Pages::Transparent => "thp",
            Pages::Huge2M => "2m",
            Pages::Huge1G => "1g",
        })
    }
}

impl FromStr for Pages {
    type Err = Error;

    fn from_str(text: &str) -> Result<Pages> {
        Ok(match text.to_ascii_lowercase().as_str() {
            "auto" => Pages::Auto,
            "4k" => Pages::Small,
            "thp" => Pages::Transparent,
            "2m" => Pages::Huge2M,
            "1g" => Pages::Huge1G,
            _ => {
                let what = format!("invalid pages \"{text}\": expected auto, 4k, thp, 2m or 1g");
                return Err(Error::Invalid { what });
            }
        })
    }
}
