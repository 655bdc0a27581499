//! The seals of memory files.

use std::fmt;
use std::ops::BitOr;

use nix::fcntl::SealFlag;

/// A set of seals of a memory file, as `fcntl(F_GET_SEALS)` reports them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Seals(SealFlag);

impl Seals {
    /// No seals.
    pub const NONE: Seals = Seals(SealFlag::empty());
    /// No seal can be added.
    #[doc(alias = "F_SEAL_SEAL")]
    pub const SEAL: Seals = Seals(SealFlag::F_SEAL_SEAL);
    /// The file cannot become shorter.
    #[doc(alias = "F_SEAL_SHRINK")]
    pub const SHRINK: Seals = Seals(SealFlag::F_SEAL_SHRINK);
    /// The file cannot become longer.
    #[doc(alias = "F_SEAL_GROW")]
    pub const GROW: Seals = Seals(SealFlag::F_SEAL_GROW);
    /// No process can change the bytes.
    #[doc(alias = "F_SEAL_WRITE")]
    pub const WRITE: Seals = Seals(SealFlag::F_SEAL_WRITE);
    /// No process can change the bytes, except through mappings that were writable before.
    #[doc(alias = "F_SEAL_FUTURE_WRITE")]
    pub const FUTURE_WRITE: Seals = Seals(SealFlag::F_SEAL_FUTURE_WRITE);

    /// Returns whether all seals of `other` are in this set.
    #[must_use]
    pub fn contains(self, other: Seals) -> bool {
        self.0.contains(other.0)
    }

    /// Returns the bits of `fcntl(2)`.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.0.bits().cast_unsigned()
    }

    /// Makes a set from the bits of `fcntl(2)`. Seals that this version does not name stay in it.
    pub(crate) fn from_bits(bits: i32) -> Seals {
        Seals(SealFlag::from_bits_retain(bits))
    }

    pub(crate) fn flags(self) -> SealFlag {
        self.0
    }
}

impl BitOr for Seals {
    type Output = Seals;

    fn bitor(self, other: Seals) -> Seals {
        Seals(self.0 | other.0)
    }
}

/// The names of the kernel, as in `F_SEAL_SHRINK | F_SEAL_GROW`.
impl fmt::Debug for Seals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("no seals");
        }
        let mut separator = "";
        for (name, _) in self.0.iter_names() {
            write!(f, "{separator}{name}")?;
            separator = " | ";
        }
        let other = self.0.difference(SealFlag::all()).bits();
        if other == 0 { Ok(()) } else { write!(f, "{separator}{other:#x}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd::{self, Backing};
    use std::os::fd::AsFd;

    #[test]
    fn a_file_reports_the_seals_that_were_added() {
        let file = memfd::create("sealed", 4096, Backing::Shmem).expect("a memory file");
        let seals = || memfd::seals(file.as_fd()).expect("its seals");
        let size = Seals::SHRINK | Seals::GROW;
        assert_eq!(seals(), size);
        assert!(!seals().contains(Seals::WRITE));
        memfd::seal(file.as_fd(), Seals::WRITE | Seals::SEAL).expect("no mapping is writable");
        assert_eq!(seals(), size | Seals::WRITE | Seals::SEAL);
        assert!(seals().contains(size) && seals().contains(Seals::NONE));
        assert!(memfd::seal(file.as_fd(), Seals::FUTURE_WRITE).is_err());
    }

    #[test]
    fn seals_are_shown_by_the_names_of_the_kernel() {
        assert_eq!(format!("{:?}", Seals::SHRINK | Seals::WRITE), "F_SEAL_SHRINK | F_SEAL_WRITE");
        assert_eq!(format!("{:?}", Seals::NONE), "no seals");
        // A seal of a later kernel.
        let newer = Seals::from_bits(0x4000_0000) | Seals::GROW;
        assert_eq!(format!("{newer:?}"), "F_SEAL_GROW | 0x40000000");
        assert_eq!(newer.bits(), 0x4000_0004);
    }
}
