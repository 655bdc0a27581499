//! The kinds of file systems.

use std::fs::File;
use std::io;

use nix::sys::statfs::{FsType, fstatfs};

/// The kind of a file system, which decides how its files are read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileSystemKind {
    /// Its files are in memory.
    Memory,
    /// Its files are on other hosts, or may be.
    Network,
    /// Any other one.
    Local,
}

/// The numbers of file systems (`statfs(2)`, `linux/magic.h`), their names and kinds. A file system
/// that is not listed is local.
const KNOWN: [(u64, &str, FileSystemKind); 18] = [
    (0x0102_1994, "tmpfs", FileSystemKind::Memory),
    (0x8584_58f6, "ramfs", FileSystemKind::Memory),
    (0x9584_58f6, "hugetlbfs", FileSystemKind::Memory),
    (0x0bd0_0bd0, "Lustre", FileSystemKind::Network),
    (0x6969, "NFS", FileSystemKind::Network),
    (0x517b, "SMB", FileSystemKind::Network),
    (0xff53_4d42, "CIFS", FileSystemKind::Network),
    (0xfe53_4d42, "SMB2", FileSystemKind::Network),
    (0x00c3_6400, "Ceph", FileSystemKind::Network),
    (0x4750_4653, "GPFS", FileSystemKind::Network),
    (0x1983_0326, "BeeGFS", FileSystemKind::Network),
    (0x2003_0528, "OrangeFS", FileSystemKind::Network),
    (0xaad7_aaea, "PanFS", FileSystemKind::Network),
    (0x5346_414f, "AFS", FileSystemKind::Network),
    (0x6b41_4653, "kAFS", FileSystemKind::Network),
    (0x7375_7245, "Coda", FileSystemKind::Network),
    (0x0102_1997, "9P", FileSystemKind::Network),
    (0x6573_5546, "FUSE", FileSystemKind::Network),
];

/// The file system of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileSystem {
    /// The name, empty if it is not known.
    pub(super) name: &'static str,
    pub(super) kind: FileSystemKind,
}

impl FileSystem {
    /// Returns the file system of a file. One that the kernel does not name counts as local.
    pub(super) fn of(file: &File) -> FileSystem {
        fstatfs(file)
            .map_or(FileSystem::with_number(0), |system| FileSystem::of_type(system.filesystem_type()))
    }

    /// Returns true for tmpfs, whose files can be mapped without the read errors of a disk.
    pub(super) fn is_tmpfs(self) -> bool {
        self.name == "tmpfs"
    }

    fn of_type(kind: FsType) -> FileSystem {
        // The type is signed on some platforms, and has 32 or 64 bits.
        FileSystem::with_number(kind.0 as u64 & 0xffff_ffff)
    }

    fn with_number(number: u64) -> FileSystem {
        let known = KNOWN.iter().find(|(known, ..)| *known == number);
        let (name, kind) = known.map_or(("", FileSystemKind::Local), |&(_, name, kind)| (name, kind));
        FileSystem { name, kind }
    }
}

/// Returns whether a file is on a file system in memory, which has no disk: tmpfs, ramfs or
/// hugetlbfs. Memory files are on tmpfs or hugetlbfs.
///
/// # Errors
/// As `fstatfs(2)`.
#[doc(alias = "fstatfs")]
pub fn is_in_memory(file: &File) -> io::Result<bool> {
    Ok(FileSystem::of_type(fstatfs(file)?.filesystem_type()).kind == FileSystemKind::Memory)
}

#[cfg(test)]
mod tests {
    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;

    #[test]
    fn a_memory_file_is_in_memory_and_a_file_of_the_kernel_is_not() {
        let memory = memfd_create(c"file-system", MFdFlags::MFD_CLOEXEC).expect("a memory file");
        assert!(is_in_memory(&File::from(memory)).expect("an open file"));
        let kernel = File::open("/proc/self/maps").expect("the kernel's file");
        assert!(!is_in_memory(&kernel).expect("an open file"));
    }

    #[test]
    fn file_systems_have_their_numbers() {
        let kind = |number: i64| FileSystem::with_number(number as u64 & 0xffff_ffff).kind;
        assert_eq!(kind(libc::TMPFS_MAGIC), FileSystemKind::Memory);
        assert_eq!(kind(libc::HUGETLBFS_MAGIC), FileSystemKind::Memory);
        assert_eq!(kind(libc::NFS_SUPER_MAGIC), FileSystemKind::Network);
        assert_eq!(kind(libc::SMB_SUPER_MAGIC), FileSystemKind::Network);
        assert_eq!(kind(libc::AFS_SUPER_MAGIC), FileSystemKind::Network);
        assert_eq!(kind(libc::CODA_SUPER_MAGIC), FileSystemKind::Network);
        assert_eq!(kind(libc::FUSE_SUPER_MAGIC), FileSystemKind::Network);
        assert_eq!(kind(libc::EXT4_SUPER_MAGIC), FileSystemKind::Local);
        assert_eq!(kind(libc::XFS_SUPER_MAGIC), FileSystemKind::Local);
    }
}
