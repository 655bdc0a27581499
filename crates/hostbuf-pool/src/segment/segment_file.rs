//! The files of a segment: their lengths, checks and mappings.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use hostbuf_memory::memfd::{self, Backing};
use hostbuf_memory::{Error, FileMapping, MappingRefused, Result, Seals};

use hostbuf_os::{ForkLock, PrivateFd};

use super::file_layout::{event_bytes, row_bytes, table_bytes};
use super::geometry::SegmentGeometry;
use super::segment_mapping::SegmentMapping;

/// The size of a transparent huge page in bytes.
const HUGE_PAGE: u64 = 2 << 20;

/// The kinds of files of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentFile {
    /// The blocks.
    Data,
    /// The block table.
    Table,
    /// The row of a reader.
    Row,
    /// The handles of the events of blocks on a GPU.
    Events,
}

/// The access of this process to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ViewAccess {
    /// For reading only.
    Read,
    /// For reading and writing.
    Write,
}

impl SegmentFile {
    pub(crate) fn name(self) -> &'static str {
        match self {
            SegmentFile::Data => "hostbuf-pool-data",
            SegmentFile::Table => "hostbuf-pool-table",
            SegmentFile::Row => "hostbuf-pool-row",
            SegmentFile::Events => "hostbuf-pool-events",
        }
    }

    /// Returns the length of the file in a segment of this geometry.
    pub(crate) fn bytes(self, geometry: SegmentGeometry) -> u64 {
        match self {
            SegmentFile::Data => geometry.data_bytes(),
            SegmentFile::Table => table_bytes(geometry),
            SegmentFile::Row => row_bytes(geometry),
            SegmentFile::Events => event_bytes(geometry),
        }
    }

    /// Creates a table or a row, with all its pages.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn create(self, geometry: SegmentGeometry) -> Result<OwnedFd> {
        self.create_named(self.name(), geometry)
    }

    /// Creates a table or a row with another name than the usual one.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn create_named(self, name: &str, geometry: SegmentGeometry) -> Result<OwnedFd> {
        let bytes = self.bytes(geometry);
        let doing = format!("creating the file {name} of {bytes} bytes");
        let create = || {
            let file = memfd::create(name, bytes, Backing::Shmem)?;
            // A page that cannot be had is an error here, and no SIGBUS later.
            let mode = nix::fcntl::FallocateFlags::empty();
            nix::fcntl::fallocate(&file, mode, 0, i64::try_from(bytes).map_err(io::Error::other)?)?;
            Ok(file)
        };
        create().map_err(|source: io::Error| Error::Os { doing, source })
    }

    /// Checks the length and the seals of a file that another process has sent.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a file of another length, or one whose length can change, or whose
    /// handles can.
    pub(crate) fn check(self, file: BorrowedFd<'_>, geometry: SegmentGeometry) -> Result<()> {
        let (name, expected) = (self.name(), self.bytes(geometry));
        let os = |source| Error::Os { doing: format!("checking the file {name}"), source };
        let invalid = |why: String| Error::Invalid { what: format!("invalid file {name}: {why}") };
        let seals = memfd::seals(file).map_err(|_| invalid("it is no memory file".into()))?;
        if !seals.contains(Seals::SHRINK | Seals::GROW) {
            return Err(invalid(format!("its length can change ({seals:?})")));
        }
        if self == SegmentFile::Events && !seals.contains(Seals::WRITE) {
            return Err(invalid(format!("its content can change ({seals:?})")));
        }
        let length = memfd::length(file).map_err(os)?;
        // A file of huge pages has whole ones.
        let is_whole = self == SegmentFile::Data && length == expected.next_multiple_of(HUGE_PAGE);
        let fits = length == expected || is_whole;
        if !fits {
            return Err(invalid(format!("it has {length} bytes, not {expected}")));
        }
        Ok(())
    }

    /// Maps a file. A forked child has no part in it.
    ///
    /// # Errors
    /// [`Error::Invalid`] as [`check`](SegmentFile::check); [`Error::Os`].
    pub(super) fn map(
        self,
        file: BorrowedFd<'_>,
        geometry: SegmentGeometry,
        access: ViewAccess,
    ) -> Result<SegmentMapping> {
        self.check(file, geometry)?;
        // Whole huge pages.
        let length = memfd::length(file)
            .map_err(|source| Error::Os { doing: format!("checking the file {}", self.name()), source })?;
        let align = match self {
            SegmentFile::Data if length >= HUGE_PAGE => HUGE_PAGE as usize,
            _ => 4096,
        };
        let mapped = match access {
            ViewAccess::Read => FileMapping::read_only(file, 0, length, align),
            ViewAccess::Write => FileMapping::new(file, 0, length, align),
        };
        let mapping = mapped.map_err(|refused| {
            let (MappingRefused::Addresses(errno) | MappingRefused::File(errno)) = refused;
            let doing = format!("mapping the file {} of {length} bytes", self.name());
            Error::Os { doing, source: io::Error::from_raw_os_error(errno) }
        })?;
        let advise = |advice| {
            mapping.advise(0, length, advice).map_err(|errno| Error::Os {
                doing: format!("keeping the file {} from forked children", self.name()),
                source: io::Error::from_raw_os_error(errno),
            })
        };
        advise(libc::MADV_DONTFORK)?;
        // If the kernel rejects the advice, core files are only larger.
        let _ = advise(libc::MADV_DONTDUMP);
        Ok(SegmentMapping::new(mapping))
    }

    /// Opens a read-only descriptor of a file, for a process that must not write to it. Without
    /// `/proc` it is a copy of the descriptor.
    pub(crate) fn read_only(file: BorrowedFd<'_>) -> io::Result<PrivateFd> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let mut unforked = ForkLock::take();
        let opened = match std::fs::File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => file.try_clone_to_owned(),
            opened => opened.map(OwnedFd::from),
        };
        opened.map(|file| unforked.keep(file))
    }
}
