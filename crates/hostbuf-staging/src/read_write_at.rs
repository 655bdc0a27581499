//! Sources and sinks of transfers on the side of the host.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes that can be read at any offset, by several threads at once.
pub trait ReadAt: Send + Sync + 'static {
    /// Describes the source, for messages: its path.
    fn name(&self) -> String;

    /// Reads bytes at `offset` into `into`, and returns their number: at least one, unless `into`
    /// is empty or nothing is at `offset`. `into` and `offset` are multiples of the
    /// [alignment](ReadAt::alignment), unless the source ends before the end of `into`.
    ///
    /// # Errors
    /// Those of the source. [`Interrupted`](io::ErrorKind::Interrupted) is tried again.
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Reads as [`read_at`](ReadAt::read_at) does, but only bytes for which it need not wait: those
    /// of a file in the page cache, for example. The default reads nothing.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if it would have to wait, and those of `read_at`.
    fn read_without_waiting(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let _ = (into, offset);
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Returns the alignment of offsets, lengths and addresses in bytes, a power of two of at most
    /// 4096.
    fn alignment(&self) -> u64 {
        1
    }
}

/// A place that can be written to at any offset, by several threads at once.
pub trait WriteAt: Send + Sync + 'static {
    /// Describes the sink, for messages: its path.
    fn name(&self) -> String;

    /// Writes bytes at `offset`, and returns their number, at least one.
    ///
    /// # Errors
    /// Those of the sink. [`Interrupted`](io::ErrorKind::Interrupted) is tried again.
    fn write_at(&self, from: &[u8], offset: u64) -> io::Result<usize>;

    /// Returns the alignment in bytes at which writes are fastest, a power of two of at most 4096.
    /// The bytes lie in memory as they lie in the sink, as far as the alignment is concerned.
    fn alignment(&self) -> u64 {
        1
    }
}

/// A file with the name that messages use.
#[derive(Debug)]
pub struct NamedFile {
    name: String,
    file: File,
}

impl NamedFile {
    /// Gives an open file a name.
    pub fn new(name: impl Into<String>, file: File) -> NamedFile {
        NamedFile { name: name.into(), file }
    }
}

impl ReadAt for NamedFile {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(into, offset)
    }
}

impl WriteAt for NamedFile {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn write_at(&self, from: &[u8], offset: u64) -> io::Result<usize> {
        self.file.write_at(from, offset)
    }
}

/// Reads until `into` contains at least `needed` bytes. Returns the number of bytes, which is less
/// only at the end of the source.
///
/// # Errors
/// Those of the source, with the number of bytes that were read before;
/// [`InvalidData`](io::ErrorKind::InvalidData) for a source that states more bytes than there is
/// room for.
pub(crate) fn read_fully(
    source: &dyn ReadAt,
    into: &mut [u8],
    needed: usize,
    offset: u64,
) -> Result<usize, (usize, io::Error)> {
    let mut done = 0;
    while done < needed {
        match source.read_at(&mut into[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(bytes) if bytes > into.len() - done => return Err((done, io::ErrorKind::InvalidData.into())),
            Ok(bytes) => done += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((done, error)),
        }
    }
    Ok(done)
}

/// Writes all of `from`. On failure, also returns the number of bytes that were written.
pub(crate) fn write_fully(sink: &dyn WriteAt, from: &[u8], offset: u64) -> Result<(), (usize, io::Error)> {
    let mut done = 0;
    while done < from.len() {
        match sink.write_at(&from[done..], offset + done as u64) {
            Ok(0) => return Err((done, io::ErrorKind::WriteZero.into())),
            Ok(bytes) if bytes > from.len() - done => return Err((done, io::ErrorKind::InvalidData.into())),
            Ok(bytes) => done += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((done, error)),
        }
    }
    Ok(())
}
