//! The memory files of a host: one for the control page, one for each buffer.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use tracing::info_span;

use crate::error::{Error, Result};
use crate::segment::control::Control;
use crate::segment::identity::{BufferIdentity, Identity, Phase};
use crate::segment::options::BufferOptions;
use crate::segment::page_layout::CONTROL_LENGTH;
use hostbuf_memory::memfd::{self, Backing};
use hostbuf_memory::populate::{self, Workers};
use hostbuf_memory::{Pages, space};
use hostbuf_protocol::wire::Winner;

/// The memory of a job on one host, referenced by its descriptors and not yet mapped.
#[derive(Debug)]
pub struct Segments {
    control: OwnedFd,
    buffers: Vec<Segment>,
}

#[derive(Debug)]
struct Segment {
    fd: OwnedFd,
    identity: BufferIdentity,
    /// True if transparent huge pages are required, not just preferred.
    strict: bool,
}

/// Returns the name of a memory file in `/proc/PID/maps`, by which `hostbuf stat` finds the buffers
/// of a job.
#[must_use]
pub fn file_name(job: u128, what: &str) -> String {
    format!("hostbuf:{job:032x}:{what}")
}

/// The suffix of the control page's file name, behind the number of the job.
pub const CONTROL_NAME: &str = "/control";

/// Returns the error of a memory file that could not be created, with the remedy for a limit on the
/// length of files.
fn creation_error(doing: String, source: std::io::Error) -> Error {
    let remedy = if source.raw_os_error() == Some(libc::EFBIG) { " (raise `ulimit -f`)" } else { "" };
    Error::os(doing + remedy)(source)
}

impl Segments {
    /// Checks that there is enough memory for all `buffers`, and creates their memory files, which
    /// have no pages yet.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Unsupported`], [`Error::Os`]. After an error no file remains.
    pub fn create(job: u128, buffers: &[BufferOptions]) -> Result<Segments> {
        let _span = info_span!("create", buffers = buffers.len()).entered();
        let demands: Vec<_> = buffers.iter().map(BufferOptions::demand).collect();
        let resolved = space::resolve_all(&demands);
        space::check(&demands, &resolved)?;
        let control = memfd::create(&file_name(job, CONTROL_NAME), CONTROL_LENGTH, Backing::Shmem)
            .map_err(|e| creation_error("making the control page's memory file".into(), e))?;
        let mut segments = Segments { control, buffers: Vec::new() };
        for (options, &pages) in buffers.iter().zip(&resolved) {
            let length = options.pages.round_up(options.size);
            let backing = match pages {
                Pages::Huge2M | Pages::Huge1G => Backing::Hugetlb(pages.size()),
                _ => Backing::Shmem,
            };
            let fd = memfd::create(&file_name(job, &options.name), length, backing).map_err(|e| {
                creation_error(format!("making a memory file of {length} bytes on pages {pages}"), e)
            })?;
            let mut identity = BufferIdentity::new(&options.name, pages);
            identity.size = options.size;
            identity.length = length;
            identity.lazy = u64::from(options.lazy);
            identity.dump = u64::from(options.dump);
            identity.inode = memfd::inode(fd.as_fd()).map_err(Error::os("fstat of a memory file"))?;
            segments.buffers.push(Segment { fd, identity, strict: options.pages == Pages::Transparent });
        }
        Ok(segments)
    }

    /// Allocates the pages of all buffers that are not lazy. `progress` is called with the number
    /// of bytes allocated so far.
    ///
    /// # Errors
    /// As [`create`](Segments::create).
    pub fn populate(&mut self, workers: Workers, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let _span = info_span!("populate", bytes = self.eager()).entered();
        let mut before = 0;
        for segment in self.buffers.iter_mut().filter(|s| s.identity.lazy == 0) {
            let (length, pages) = (segment.identity.length, segment.identity.pages());
            let mut tell = |done| progress(before + done);
            let huge =
                populate::populate(segment.fd.as_fd(), length, pages, segment.strict, workers, &mut tell)?;
            let obtained = if huge == 0 { Pages::Small } else { pages };
            segment.identity = segment.identity.with_pages(obtained);
            segment.identity.huge = huge;
            before += length;
        }
        Ok(())
    }

    /// Returns the number of bytes of all buffers that are not lazy.
    #[must_use]
    pub fn eager(&self) -> u64 {
        self.buffers.iter().map(|s| &s.identity).filter(|i| i.lazy == 0).map(|i| i.length).sum()
    }

    /// Returns the control page's descriptor, followed by those of the buffers in order.
    #[must_use]
    pub fn descriptors(&self) -> Vec<RawFd> {
        std::iter::once(&self.control)
            .chain(self.buffers.iter().map(|s| &s.fd))
            .map(AsRawFd::as_raw_fd)
            .collect()
    }

    /// Writes the control page: `identity` with the buffers and `winner` added. Every buffer is
    /// empty.
    ///
    /// # Errors
    /// [`Error::Os`] if the page cannot be mapped.
    pub fn publish(&self, mut identity: Identity, winner: &Winner) -> Result<()> {
        let page = ControlPage::map(self.control.as_fd())?;
        identity.address = winner.address;
        identity.length = winner.length;
        identity.count = self.buffers.len() as u32;
        for (i, (segment, extent)) in self.buffers.iter().zip(winner.buffers.as_slice()).enumerate() {
            identity.buffers[i] = segment.identity;
            identity.buffers[i].offset = extent.offset;
            page.control().reset(i);
        }
        page.control().publish(identity);
        Ok(())
    }

    /// Splits the memory into a mapping of the control page, for the launcher that completes it,
    /// and the descriptors, for the ranks.
    ///
    /// # Errors
    /// [`Error::Os`] if the control page cannot be mapped.
    pub fn share(self) -> Result<(ControlPage, Arc<Vec<OwnedFd>>)> {
        let page = ControlPage::map(self.control.as_fd())?;
        Ok((page, Arc::new(self.into_descriptors())))
    }

    /// Converts the memory into its descriptors: the control page's and those of the buffers.
    #[must_use]
    pub fn into_descriptors(self) -> Vec<OwnedFd> {
        std::iter::once(self.control).chain(self.buffers.into_iter().map(|s| s.fd)).collect()
    }
}

/// A mapping of a control page at any address. Dropping it unmaps the page.
pub struct ControlPage {
    at: *mut libc::c_void,
}

impl ControlPage {
    /// Maps the control page `fd`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a file of another length, [`Error::Os`].
    pub fn map(fd: BorrowedFd<'_>) -> Result<ControlPage> {
        let found = memfd::length(fd).map_err(Error::os("fstat of the control page"))?;
        if found != CONTROL_LENGTH {
            return Err(Error::Corrupt { word: "the control page's length", found });
        }
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe {
            let rw = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), CONTROL_LENGTH as usize, rw, libc::MAP_SHARED, fd.as_raw_fd(), 0)
        };
        if at == libc::MAP_FAILED {
            return Err(Error::os("mapping the control page")(std::io::Error::last_os_error()));
        }
        Ok(ControlPage { at })
    }

    /// Sets the durations of the phases. It must be called before another process reads the page.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn set_phases(&self, phases: [u64; Phase::COUNT]) -> Result<()> {
        let mut identity = self.control().identity()?;
        identity.phases = phases;
        self.control().publish(identity);
        Ok(())
    }

    /// Returns a handle of the page, valid as long as this mapping.
    #[must_use]
    pub fn control(&self) -> Control {
        // SAFETY: mapped until drop, and the file cannot shrink (sealed; its length was checked).
        unsafe { Control::at(self.at as usize) }
    }
}

// SAFETY: the page is shared memory, which every thread reads as atomics, or copies and checks.
unsafe impl Send for ControlPage {}
// SAFETY: as above.
unsafe impl Sync for ControlPage {}

impl Drop for ControlPage {
    fn drop(&mut self) {
        // SAFETY: map() mapped it.
        unsafe { libc::munmap(self.at, CONTROL_LENGTH as usize) };
    }
}
