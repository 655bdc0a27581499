//! The handles of the events of a segment on a GPU.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hostbuf_memory::memfd::{self, Backing};
use hostbuf_memory::{Error, Result, Seals};

use super::file_layout::HANDLE_BYTES;
use super::geometry::SegmentGeometry;
use super::segment_file::SegmentFile;

/// The handle of an event that other processes import.
pub(crate) type EventHandle = [u8; HANDLE_BYTES];

/// Writes the handles of the events of all blocks to a memory file that nobody can change.
///
/// # Errors
/// [`Error::Os`].
pub(crate) fn write_handles(handles: &[EventHandle], geometry: SegmentGeometry) -> Result<OwnedFd> {
    let bytes = SegmentFile::Events.bytes(geometry);
    let write = || {
        let file = memfd::create(SegmentFile::Events.name(), bytes, Backing::Shmem)?;
        memfd::write(file.as_fd(), handles.as_flattened())?;
        memfd::seal(file.as_fd(), Seals::WRITE | Seals::SEAL)?;
        Ok(file)
    };
    write().map_err(|source: io::Error| Error::Os {
        doing: format!("creating the file {} of {bytes} bytes", SegmentFile::Events.name()),
        source,
    })
}

/// Reads the handles of the events of all blocks from a file that another process has sent.
///
/// # Errors
/// [`Error::Invalid`] for a file of another length, or one that can change; [`Error::Os`].
pub(crate) fn read_handles(file: BorrowedFd<'_>, geometry: SegmentGeometry) -> Result<Vec<EventHandle>> {
    SegmentFile::Events.check(file, geometry)?;
    let mut handles = vec![[0; HANDLE_BYTES]; geometry.blocks() as usize];
    let doing = || format!("reading the file {}", SegmentFile::Events.name());
    let (bytes, mut done) = (handles.as_flattened_mut(), 0);
    while done < bytes.len() {
        let read = nix::sys::uio::pread(file, &mut bytes[done..], done as i64);
        match read.map_err(|errno| Error::Os { doing: doing(), source: errno.into() })? {
            0 => return Err(Error::Os { doing: doing(), source: io::ErrorKind::UnexpectedEof.into() }),
            read => done += read,
        }
    }
    Ok(handles)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_survive_their_file_and_nobody_changes_them() {
        let geometry = SegmentGeometry::new(4096, 70, 1).unwrap();
        let handles: Vec<EventHandle> = (0..70).map(|block| [block; HANDLE_BYTES]).collect();
        let file = write_handles(&handles, geometry).unwrap();
        assert_eq!(read_handles(file.as_fd(), geometry).unwrap(), handles);
        assert!(memfd::write(file.as_fd(), b"x").is_err());
        let other = SegmentGeometry::new(4096, 64, 1).unwrap();
        assert!(matches!(read_handles(file.as_fd(), other), Err(Error::Invalid { .. })));
        // A file that its maker could still change.
        let bytes = SegmentFile::Events.bytes(geometry);
        let open = memfd::create("events", bytes, Backing::Shmem).unwrap();
        assert!(matches!(read_handles(open.as_fd(), geometry), Err(Error::Invalid { .. })));
    }
}
