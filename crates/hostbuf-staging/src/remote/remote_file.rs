//! An object of a server, as the source of transfers.

use std::sync::Arc;
use std::{fmt, io};

use super::remote_error::RemoteError;
use super::remote_object::RemoteObject;
use super::request_threads::RequestThreads;
use crate::device::{CopyDevice, DeviceTarget};
use crate::read_write_at::ReadAt;
use crate::ring::Ring;
use crate::transfer::{Transfer, TransferPart};

/// An object of a server, as the source of transfers. Clones are the same object.
///
/// Its bytes are received in a slot of the ring, or in the memory of a host target. HTTPS,
/// redirects, proxies, WebHDFS and [reactors](super::RequestMode::Reactors) take one more copy.
/// Each piece is one request (of [`RingOptions::piece_bytes`]), or several with reactors. Give the
/// ring more workers than the host has cores if the server is far away: they wait most of the time.
///
/// [`RingOptions::piece_bytes`]: crate::RingOptions::piece_bytes
///
/// ```no_run
/// use hostbuf_staging::{RemoteOptions, RequestMode};
///
/// let client = RemoteOptions::new().mode(RequestMode::Easy).client()?;
/// let file = client.open("s3://models/llama/model-00001.safetensors")?;
/// println!("{} has {} bytes", file.url(), file.bytes());
/// # Ok::<(), hostbuf_staging::RemoteError>(())
/// ```
#[derive(Clone)]
pub struct RemoteFile {
    /// The threads and connections of the client.
    threads: Arc<RequestThreads>,
    object: Arc<RemoteObject>,
}

impl RemoteFile {
    pub(super) fn new(threads: Arc<RequestThreads>, object: Arc<RemoteObject>) -> RemoteFile {
        RemoteFile { threads, object }
    }

    /// Returns the number of bytes that the object had when it was opened.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.object.version.bytes
    }

    /// Returns the address, without credentials and without its query.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.object.shown
    }

    /// Starts to read the bytes from `offset` on into all of `to`: see [`Ring::read`]. A failure is
    /// [`TransferError::Io`](crate::TransferError::Io) whose source has a [`RemoteError`].
    pub fn pread<D: CopyDevice>(&self, ring: &Ring<D>, to: DeviceTarget, offset: u64) -> Transfer {
        ring.read(Arc::new(self.clone()), offset, to)
    }

    /// Starts to read many ranges, as one transfer: see [`Ring::read_batch`].
    pub fn pread_batch<D: CopyDevice>(&self, ring: &Ring<D>, parts: Vec<TransferPart>) -> Transfer {
        ring.read_batch(Arc::new(self.clone()), parts)
    }

    /// Reads bytes from `offset` on into all of `into`, but none beyond the end of the object.
    /// Returns the number of bytes. Waits for the server.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub fn read(&self, into: &mut [u8], offset: u64) -> Result<usize, RemoteError> {
        let left = self.bytes().saturating_sub(offset);
        let bytes = into.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if bytes > 0 {
            let (range, into) = (offset..offset + bytes as u64, &mut into[..bytes]);
            let named = |error: RemoteError| match error.url.is_empty() {
                true => RemoteError { url: self.object.shown.clone(), range: Some(range.clone()), ..error },
                false => error,
            };
            self.threads.read(&self.object, range.clone(), into).map_err(named)?;
        }
        Ok(bytes)
    }
}

impl ReadAt for RemoteFile {
    fn name(&self) -> String {
        self.object.shown.clone()
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(self.read(into, offset)?)
    }
}

impl fmt::Debug for RemoteFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (url, version) = (&self.object.shown, &self.object.version);
        f.debug_struct("RemoteFile").field("url", url).field("version", version).finish_non_exhaustive()
    }
}
