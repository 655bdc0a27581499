//! A file for transfers.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::backend::{Backend, BackendChoice};
use super::file_descriptors::FileDescriptors;
use crate::device::{CopyDevice, DeviceTarget, StreamDevice};
use crate::read_write_at::{ReadAt, WriteAt};
use crate::ring::Ring;
use crate::transfer::{Transfer, TransferPart};

/// The options with which a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileOptions {
    /// The backend by which the file is read and written.
    pub backend: Backend,
    /// True if the file is written too. It is made if it does not exist.
    pub write: bool,
}

impl FileOptions {
    /// Makes the default options: reading only, by [`Backend::Auto`].
    #[must_use]
    pub fn new() -> FileOptions {
        FileOptions::default()
    }

    /// Sets the backend by which the file is read and written.
    #[must_use]
    pub fn backend(mut self, backend: Backend) -> FileOptions {
        self.backend = backend;
        self
    }

    /// Sets whether the file is written.
    #[must_use]
    pub fn write(mut self, write: bool) -> FileOptions {
        self.write = write;
        self
    }

    /// Opens a file.
    ///
    /// # Errors
    /// As `open(2)`, with the path as [`OpenError`](crate::OpenError);
    /// [`Unsupported`](io::ErrorKind::Unsupported), with the reason, if the file cannot be read and
    /// written by the requested backend; [`InvalidInput`](io::ErrorKind::InvalidInput) if it is a
    /// FIFO, and [`IsADirectory`](io::ErrorKind::IsADirectory) if it is a folder.
    pub fn open(self, path: impl AsRef<Path>) -> io::Result<File> {
        FileDescriptors::open(path.as_ref(), self.backend, self.write).map(|file| File(Arc::new(file)))
    }
}

/// A file for transfers. Clones are the same file, which is closed when the last clone is dropped
/// and the last transfer has ended.
///
/// A transfer moves bytes between the file and memory of the device of a [`Ring`]: a GPU, or the
/// host. It is in flight when the call returns.
#[derive(Clone, Debug)]
pub struct File(Arc<FileDescriptors>);

impl File {
    /// Opens a file for reading, by [`Backend::Auto`].
    ///
    /// # Errors
    /// As `open(2)`, with the path.
    pub fn open(path: impl AsRef<Path>) -> io::Result<File> {
        FileOptions::new().open(path)
    }

    /// Starts to read the bytes from `offset` on into all of `to`: see [`Ring::read`].
    pub fn pread<D: CopyDevice>(&self, ring: &Ring<D>, to: DeviceTarget, offset: u64) -> Transfer {
        ring.read(self.0.clone(), offset, to)
    }

    /// Starts to write all of `from` to the bytes from `offset` on: see [`Ring::write`]. The bytes
    /// are on the disk after [`sync`](File::sync) has returned.
    pub fn pwrite<D: CopyDevice>(&self, ring: &Ring<D>, from: DeviceTarget, offset: u64) -> Transfer {
        ring.write(from, self.0.clone(), offset)
    }

    /// Starts to read in the order of a stream of the program: see [`Ring::read_on`].
    pub fn pread_on<D: StreamDevice>(
        &self,
        ring: &Ring<D>,
        stream: &D::Stream,
        to: DeviceTarget,
        offset: u64,
    ) -> Transfer {
        ring.read_on(stream, self.0.clone(), offset, to)
    }

    /// Starts to write in the order of a stream of the program: see [`Ring::write_on`]. When later
    /// work of the stream begins, the file has the bytes, and the memory may change.
    pub fn pwrite_on<D: StreamDevice>(
        &self,
        ring: &Ring<D>,
        stream: &D::Stream,
        from: DeviceTarget,
        offset: u64,
    ) -> Transfer {
        ring.write_on(stream, from, self.0.clone(), offset)
    }

    /// Starts to read after the work of a stream of the program: see [`Ring::read_after`].
    pub fn pread_after<D: StreamDevice>(
        &self,
        ring: &Ring<D>,
        stream: &D::Stream,
        to: DeviceTarget,
        offset: u64,
    ) -> Transfer {
        ring.read_after(stream, self.0.clone(), offset, to)
    }

    /// Starts to write after the work of a stream of the program: see [`Ring::write_after`].
    pub fn pwrite_after<D: StreamDevice>(
        &self,
        ring: &Ring<D>,
        stream: &D::Stream,
        from: DeviceTarget,
        offset: u64,
    ) -> Transfer {
        ring.write_after(stream, from, self.0.clone(), offset)
    }

    /// Starts to read many ranges, as one transfer: see [`Ring::read_batch`].
    pub fn pread_batch<D: CopyDevice>(&self, ring: &Ring<D>, parts: Vec<TransferPart>) -> Transfer {
        ring.read_batch(self.0.clone(), parts)
    }

    /// Starts to write many ranges, as one transfer: see [`Ring::write_batch`].
    pub fn pwrite_batch<D: CopyDevice>(&self, ring: &Ring<D>, parts: Vec<TransferPart>) -> Transfer {
        ring.write_batch(parts, self.0.clone())
    }

    /// Reads bytes at `offset` into memory that is not accessed soon, such as a part of a large
    /// buffer, and returns their number. As [`ReadAt::read_at`], but bytes that come from the page
    /// cache do not fill the caches of the processor, which is faster for 256 KiB or more.
    ///
    /// # Errors
    /// As `pread(2)`.
    #[doc(alias = "streaming")]
    pub fn read_non_temporal_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_non_temporal_at(into, offset)
    }

    /// Returns the backend by which the file is read and written, and the reason. After the first
    /// use, the reason also states why the slots of a ring are not fixed buffers of io_uring.
    #[must_use]
    pub fn backend(&self) -> BackendChoice {
        self.0.backend()
    }

    /// Returns the path with which the file was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns the file, for calls of the standard library.
    #[must_use]
    pub fn as_std(&self) -> &std::fs::File {
        self.0.buffered()
    }

    /// Returns the number of bytes.
    ///
    /// # Errors
    /// As `fstat(2)`.
    pub fn bytes(&self) -> io::Result<u64> {
        Ok(self.as_std().metadata()?.len())
    }

    /// Writes what the page cache has of the file to the disk, and waits for it. Transfers that
    /// have not ended may write later.
    ///
    /// # Errors
    /// As `fsync(2)`.
    pub fn sync(&self) -> io::Result<()> {
        self.as_std().sync_all()
    }
}

impl ReadAt for File {
    fn name(&self) -> String {
        ReadAt::name(&*self.0)
    }

    fn alignment(&self) -> u64 {
        ReadAt::alignment(&*self.0)
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(into, offset)
    }

    fn read_without_waiting(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_without_waiting(into, offset)
    }
}

impl WriteAt for File {
    fn name(&self) -> String {
        WriteAt::name(&*self.0)
    }

    fn alignment(&self) -> u64 {
        WriteAt::alignment(&*self.0)
    }

    fn write_at(&self, from: &[u8], offset: u64) -> io::Result<usize> {
        self.0.write_at(from, offset)
    }
}
