//! A file that cuFile reads and writes.

#![allow(unsafe_code, reason = "the library is called by foreign functions")]

use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::{fmt, io};

use hostbuf_os::Bytes;

use super::cufile_buffer::CuFileBuffer;
use super::cufile_driver::CuFileDriver;
use super::cufile_error::CuFileError;
use super::cufile_functions::{DescriptorOrPointer, FileDescription, LINUX_DESCRIPTOR};
use crate::device::DeviceTarget;
use crate::file::direct_io::DirectFile;

/// A file that cuFile reads into memory of a GPU, and writes from there. Each call waits until the
/// bytes have arrived. Any thread may call.
pub struct CuFile {
    driver: CuFileDriver,
    /// cuFile's pointer, which is only ever passed back to it.
    handle: usize,
    path: PathBuf,
    /// Closed after the handle.
    file: File,
}

impl CuFile {
    /// Opens a file for reading, bypassing the page cache if its file system allows that.
    ///
    /// # Errors
    /// [`CuFileError`], with the path.
    #[doc(alias = "cuFileHandleRegister")]
    pub fn open(driver: &CuFileDriver, path: impl AsRef<Path>) -> Result<CuFile, CuFileError> {
        CuFile::open_with(driver, path.as_ref(), OpenOptions::new().read(true))
    }

    /// Opens a file for reading and writing, as [`open`](CuFile::open). It is made if it does not
    /// exist.
    ///
    /// # Errors
    /// [`CuFileError`], with the path.
    pub fn open_for_writing(driver: &CuFileDriver, path: impl AsRef<Path>) -> Result<CuFile, CuFileError> {
        let mut open = OpenOptions::new();
        CuFile::open_with(driver, path.as_ref(), open.read(true).write(true).create(true).truncate(false))
    }

    fn open_with(driver: &CuFileDriver, path: &Path, open: &OpenOptions) -> Result<CuFile, CuFileError> {
        let name = path.display();
        let opened = open.open(path);
        let opened = opened.map_err(|source| CuFileError::Io { doing: format!("opening {name}"), source })?;
        let file = DirectFile::open(path, open).map_or(opened, |direct| direct.file);
        let mut description = FileDescription {
            kind: LINUX_DESCRIPTOR,
            descriptor: DescriptorOrPointer { pointer: null_mut() },
            operations: std::ptr::null(),
        };
        description.descriptor.descriptor = file.as_raw_fd();
        let mut handle: *mut c_void = null_mut();
        driver.call(|| {
            // SAFETY: both are local variables, and the file is open as long as the handle exists.
            let result =
                unsafe { (driver.functions().handle_register)(&raw mut handle, &raw mut description) };
            CuFileError::check(result, format_args!("cuFileHandleRegister of {name}"))
        })?;
        Ok(CuFile { driver: driver.clone(), handle: handle as usize, path: path.to_owned(), file })
    }

    /// Returns the file, for calls of the standard library. Reads and writes may have to be
    /// aligned.
    #[must_use]
    pub fn as_std(&self) -> &File {
        &self.file
    }

    /// Reads into all of `to` from `offset` in the file on. Returns the number of bytes, which is
    /// less at the end of the file.
    ///
    /// # Errors
    /// [`CuFileError`].
    #[doc(alias = "cuFileRead")]
    pub fn read(&self, to: &DeviceTarget, offset: u64) -> Result<u64, CuFileError> {
        self.read_at(to.address(), &(0..to.bytes()), offset)
    }

    /// Writes all of `from` at `offset` in the file. Returns the number of bytes.
    ///
    /// # Errors
    /// [`CuFileError`].
    #[doc(alias = "cuFileWrite")]
    pub fn write(&self, from: &DeviceTarget, offset: u64) -> Result<u64, CuFileError> {
        self.write_at(from.address(), &(0..from.bytes()), offset)
    }

    /// Reads into `part` of registered memory, in bytes from its beginning, as
    /// [`read`](CuFile::read).
    ///
    /// # Errors
    /// [`CuFileError`]; [`CuFileError::Io`] if the part does not lie in the buffer.
    pub fn read_registered(
        &self,
        to: &CuFileBuffer,
        part: Range<u64>,
        offset: u64,
    ) -> Result<u64, CuFileError> {
        self.check_part(to, &part)?;
        self.read_at(to.target().address(), &part, offset)
    }

    /// Writes `part` of registered memory, as [`write`](CuFile::write).
    ///
    /// # Errors
    /// As [`read_registered`](CuFile::read_registered).
    pub fn write_registered(
        &self,
        from: &CuFileBuffer,
        part: Range<u64>,
        offset: u64,
    ) -> Result<u64, CuFileError> {
        self.check_part(from, &part)?;
        self.write_at(from.target().address(), &part, offset)
    }

    fn check_part(&self, buffer: &CuFileBuffer, part: &Range<u64>) -> Result<(), CuFileError> {
        buffer.check(part).map_err(|error| {
            let doing = self.path.display().to_string();
            CuFileError::Io { doing, source: io::Error::new(io::ErrorKind::InvalidInput, error) }
        })
    }

    fn read_at(&self, base: u64, part: &Range<u64>, offset: u64) -> Result<u64, CuFileError> {
        let (bytes, path) = (part.end - part.start, self.path.display());
        let read = self.driver.functions().read;
        self.driver.call(|| {
            let (handle, base) = (self.handle as *mut c_void, base as *mut c_void);
            // SAFETY: the target keeps the memory, which nobody else uses. cuFile refuses offsets
            // that are negative as signed numbers.
            let result = unsafe { read(handle, base, bytes as usize, offset as i64, part.start as i64) };
            let bytes = Bytes(bytes);
            CuFileError::check_bytes(
                result,
                format_args!("cuFileRead of {bytes} at offset {offset} of {path}"),
            )
        })
    }

    fn write_at(&self, base: u64, part: &Range<u64>, offset: u64) -> Result<u64, CuFileError> {
        let (bytes, path) = (part.end - part.start, self.path.display());
        let write = self.driver.functions().write;
        self.driver.call(|| {
            let (handle, base) = (self.handle as *mut c_void, base as *const c_void);
            // SAFETY: as for reads.
            let result = unsafe { write(handle, base, bytes as usize, offset as i64, part.start as i64) };
            let bytes = Bytes(bytes);
            CuFileError::check_bytes(
                result,
                format_args!("cuFileWrite of {bytes} at offset {offset} of {path}"),
            )
        })
    }
}

impl fmt::Debug for CuFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CuFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Drop for CuFile {
    fn drop(&mut self) {
        if self.driver.context().is_inherited() {
            return;
        }
        let ended = self.driver.call(|| {
            // SAFETY: registered when the file was opened, and no read or write uses it any more.
            unsafe { (self.driver.functions().handle_deregister)(self.handle as *mut c_void) };
            Ok(())
        });
        if let Err(error) = ended {
            tracing::error!("cuFileHandleDeregister of {}: {error}", self.path.display());
        }
    }
}
