//! Sources and sinks that are cut, fail, and move fewer bytes than requested.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use hostbuf_os::poison::IgnorePoison;
use hostbuf_staging::{ReadAt, WriteAt};

/// The defect of a source or a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByteDefect {
    None,
    /// The source ends at this offset; the sink has no room from there on.
    Cut(u64),
    /// The operation of this number, counted from 1, fails.
    Fail(u64),
}

/// A source in memory.
pub(crate) struct UnsteadySource {
    pub(crate) content: Arc<Vec<u8>>,
    pub(crate) defect: ByteDefect,
    /// The largest number of bytes of one read.
    pub(crate) most: usize,
    pub(crate) operations: AtomicU64,
    pub(crate) _token: Arc<()>,
}

/// Returns the error of an operation, and whether it is to be tried again.
fn refusal(defect: ByteDefect, operations: &AtomicU64) -> io::Result<()> {
    let number = operations.fetch_add(1, Ordering::Relaxed) + 1;
    match defect {
        ByteDefect::Fail(failing) if number >= failing => Err(io::Error::other("the disk is broken")),
        _ if number % 7 == 3 => Err(io::ErrorKind::Interrupted.into()),
        _ => Ok(()),
    }
}

impl ReadAt for UnsteadySource {
    fn name(&self) -> String {
        "an unsteady source".into()
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        refusal(self.defect, &self.operations)?;
        let end = if let ByteDefect::Cut(end) = self.defect { end as usize } else { usize::MAX };
        let content = &self.content[..end.min(self.content.len())];
        let rest = content.get(offset as usize..).unwrap_or_default();
        let bytes = rest.len().min(into.len()).min(self.most);
        into[..bytes].copy_from_slice(&rest[..bytes]);
        Ok(bytes)
    }
}

/// A sink in memory.
pub(crate) struct UnsteadySink {
    pub(crate) content: Mutex<Vec<u8>>,
    pub(crate) defect: ByteDefect,
    /// The largest number of bytes of one write.
    pub(crate) most: usize,
    pub(crate) operations: AtomicU64,
    pub(crate) _token: Arc<()>,
}

impl WriteAt for UnsteadySink {
    fn name(&self) -> String {
        "an unsteady sink".into()
    }

    fn write_at(&self, from: &[u8], offset: u64) -> io::Result<usize> {
        refusal(self.defect, &self.operations)?;
        let end = if let ByteDefect::Cut(end) = self.defect { end } else { u64::MAX };
        let bytes = from.len().min(self.most).min(end.saturating_sub(offset) as usize);
        if bytes == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let start = offset as usize;
        self.content.lock().ignore_poison()[start..start + bytes].copy_from_slice(&from[..bytes]);
        Ok(bytes)
    }
}
