//! The memory files of a host: one for the identity, one for the control page, one for each buffer.

#![allow(unsafe_code, reason = "makes a view of the mapped control page")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use tracing::info_span;

use crate::error::{Error, Result};
use crate::segment::control::Control;
use crate::segment::control_layout::ControlLayout;
use crate::segment::gpu_layout::gpu_pieces;
use crate::segment::identity::{BufferIdentity, Identity};
use crate::segment::layout::Layout;
use crate::segment::options::BufferOptions;
use crate::segment::phase::Phase;
use crate::segment::section_identity::SectionIdentity;
use crate::segment::sections;
use hostbuf_memory::memfd::{self, Backing};
use hostbuf_memory::placement::{FilePlan, HostNodes};
use hostbuf_memory::populate::{self, PageRequest, Workers};
use hostbuf_memory::{
    CreatedFile, Demand, FileMapping, MappingRefused, Pages, Seals, create_all, create_without_pools,
    creation_error, has_chosen_pools,
};

/// The size of a transparent huge page in bytes.
const HUGE_PAGE: u64 = 2 << 20;

/// The memory of a job on one host, referenced by its descriptors and not yet mapped.
#[derive(Debug)]
pub struct Segments {
    job: u128,
    control: OwnedFd,
    buffers: Vec<Segment>,
    /// The sections of all buffers, in their order.
    sections: Vec<SectionIdentity>,
    /// The nodes of this host, if a buffer has a placement.
    nodes: Option<HostNodes>,
    /// The requests for the buffers.
    requests: Vec<BufferOptions>,
}

#[derive(Debug)]
struct Segment {
    fd: OwnedFd,
    identity: BufferIdentity,
    plan: FilePlan,
    /// True if transparent huge pages are required, not just preferred.
    strict: bool,
}

impl Segment {
    fn request(&self) -> PageRequest<'_> {
        PageRequest::new(&self.plan, self.identity.pages).strict(self.strict)
    }
}

/// Returns the name of a memory file in `/proc/PID/maps`, by which `hostbuf stat` finds the buffers
/// of a job.
#[must_use]
pub fn file_name(job: u128, what: &str) -> String {
    format!("hostbuf:{job:032x}:{what}")
}

fn file_names(job: u128, buffers: &[BufferOptions]) -> Vec<String> {
    buffers.iter().map(|options| file_name(job, &options.name)).collect()
}

/// The end of the identity's file name, behind the number of the job.
pub const IDENTITY_NAME: &str = "/identity";
/// The end of the control page's file name, behind the number of the job.
pub const CONTROL_NAME: &str = "/control";
/// The beginning of the end of a loaded file's name, behind the number of the job. The name of the
/// file follows.
pub const FILES_NAME: &str = "/files/";
/// The prefix, behind the number of the job, in the name of a memory file with copies on a NUMA
/// node. The name of the buffer, `/` and the node follow.
pub const COPIES_NAME: &str = "/copies/";
/// The end of the name of the memory file with the state of loaded files, behind the number of the
/// job.
pub const LOADS_NAME: &str = "/loads";

impl Segments {
    /// Checks that there is enough memory for all `buffers`, and creates their memory files, which
    /// have no pages yet.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Unsupported`], [`Error::Memory`] for a placement,
    /// [`Error::Os`]. After an error no file remains.
    pub fn create(job: u128, buffers: &[BufferOptions]) -> Result<Segments> {
        let _span = info_span!("create", buffers = buffers.len()).entered();
        let demands: Vec<_> = buffers.iter().map(BufferOptions::demand).collect();
        let nodes = demands.iter().any(Demand::is_placed).then(HostNodes::of_this_host);
        let files = create_all(&demands, &file_names(job, buffers), nodes.as_ref())?;
        let length = ControlLayout::new(buffers.len()).length();
        let control = memfd::create(&file_name(job, CONTROL_NAME), length, Backing::Shmem)
            .map_err(|e| creation_error("creating the control page's memory file".into(), e))?;
        let (buffers, requests) = (Vec::new(), buffers.to_vec());
        let mut segments = Segments { job, control, buffers, sections: Vec::new(), nodes, requests };
        segments.set_files(files)?;
        Ok(segments)
    }

    /// Sets the memory files of the buffers.
    fn set_files(&mut self, files: Vec<CreatedFile>) -> Result<()> {
        for (index, (options, created)) in self.requests.iter().zip(files).enumerate() {
            let CreatedFile { file: fd, pages, plan } = created;
            self.sections.extend(sections::planned(index, options, &plan));
            let mut identity = BufferIdentity::new(&options.name, pages);
            identity.size = options.requested();
            identity.length = options.demand().length();
            identity.lazy = options.lazy;
            identity.dump = options.dump;
            identity.inode = memfd::inode(fd.as_fd()).map_err(Error::os("fstat of a memory file"))?;
            let strict = options.file_pages() == Pages::Transparent;
            self.buffers.push(Segment { fd, identity, plan, strict });
        }
        Ok(())
    }

    /// Allocates the pages of all buffers that are not lazy. `progress` is called with the number
    /// of bytes allocated so far.
    ///
    /// If a pool of huge pages lacks some, and [`Pages::Auto`] has chosen that pool, it starts
    /// again with other pages.
    ///
    /// # Errors
    /// As [`create`](Segments::create).
    pub fn populate(&mut self, workers: Workers, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let _span = info_span!("populate", bytes = self.eager()).entered();
        let demands: Vec<_> = self.requests.iter().map(BufferOptions::demand).collect();
        let pages: Vec<_> = self.buffers.iter().map(|segment| segment.identity.pages).collect();
        match self.populate_files(workers, progress) {
            Err(Error::NoSpace(first)) if has_chosen_pools(&demands, &pages) => {
                tracing::info!(%first, "a pool of huge pages has too few: using other pages");
                self.buffers.clear();
                self.sections.clear();
                let names = file_names(self.job, &self.requests);
                let again = create_without_pools(&demands, &names, self.nodes.as_ref());
                let populated = again
                    .map_err(Error::from)
                    .and_then(|files| self.set_files(files))
                    .and_then(|()| self.populate_files(workers, progress));
                populated.map_err(|second| {
                    if matches!(second, Error::NoSpace(_)) { Error::NoSpace(first) } else { second }
                })
            }
            populated => populated,
        }
    }

    fn populate_files(&mut self, workers: Workers, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let mut before = 0;
        let own = workers.cores();
        let cores = |node| self.nodes.as_ref().map_or(*own, |nodes| nodes.cores(node, own));
        // Pages without a placement may be on any node, so they come last.
        for (index, segment) in self.buffers.iter_mut().enumerate().filter(|(_, s)| !s.identity.lazy) {
            let mut report = |done| progress(before + done);
            let obtained =
                populate::populate_placed(segment.fd.as_fd(), segment.request(), &cores, &mut report)?;
            segment.identity.huge = obtained.huge;
            let own = self.sections.iter_mut().filter(|section| section.buffer == index);
            own.zip(&obtained.on_nodes).for_each(|(section, bytes)| sections::set_obtained(section, bytes));
            before += segment.plan.placed_bytes();
        }
        for segment in self.buffers.iter_mut().filter(|s| !s.identity.lazy) {
            let mut report = |done| progress(before + done);
            let (fd, request) = (segment.fd.as_fd(), segment.request());
            segment.identity.huge += populate::populate_unplaced(fd, request, workers, &mut report)?;
            if segment.identity.huge == 0 {
                segment.identity.pages = Pages::Small;
            }
            before += segment.identity.length - segment.plan.placed_bytes();
        }
        Ok(())
    }

    /// Returns the number of bytes of all buffers that are not lazy.
    #[must_use]
    pub fn eager(&self) -> u64 {
        self.buffers.iter().map(|s| &s.identity).filter(|i| !i.lazy).map(|i| i.length).sum()
    }

    /// Returns the size of the pages of a buffer by its index, in bytes.
    #[must_use]
    pub fn page_bytes(&self, index: usize) -> u64 {
        self.buffers[index].identity.pages.size()
    }

    /// Maps a buffer by its index, at any address, before the ranks have it.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn map(&self, index: usize) -> Result<FileMapping> {
        let Segment { fd, identity, .. } = &self.buffers[index];
        let align = identity.pages.size().max(HUGE_PAGE) as usize;
        FileMapping::new(fd.as_fd(), 0, identity.length, align).map_err(|refused| {
            let (MappingRefused::Addresses(errno) | MappingRefused::File(errno)) = refused;
            let doing = format!("mapping buffer \"{}\" (raise `ulimit -v`)", identity.name());
            Error::os(doing)(std::io::Error::from_raw_os_error(errno))
        })
    }

    /// Completes the memory for the ranks: writes and seals the identity, which is `identity` with
    /// the buffers and the addresses of `layout` added, and makes every buffer empty.
    ///
    /// # Errors
    /// [`Error::Os`] if the identity cannot be written and sealed, or the control page cannot be
    /// mapped.
    pub fn publish(
        self,
        mut identity: Identity,
        layout: &Layout,
        phases: [u64; Phase::COUNT],
    ) -> Result<PublishedSegments> {
        let page = ControlPage::map(self.control.as_fd(), ControlLayout::new(self.buffers.len()))?;
        identity.address = layout.address;
        identity.length = layout.length;
        identity.buffers = self.buffers.iter().map(|segment| segment.identity).collect();
        identity.sections = self.sections;
        identity.gpu_pieces = gpu_pieces(&self.requests);
        for (buffer, extent) in identity.buffers.iter_mut().zip(&layout.buffers) {
            buffer.offset = extent.part.offset;
        }
        (0..self.buffers.len()).for_each(|index| page.control().reset(index));
        page.control().set_phases(phases);
        let name = file_name(self.job, IDENTITY_NAME);
        let file = memfd::create(&name, layout.identity.length, Backing::Shmem)
            .map_err(|e| creation_error("creating the identity's memory file".into(), e))?;
        memfd::write(file.as_fd(), &identity.encode()).map_err(Error::os("writing the identity"))?;
        let seals = Seals::WRITE | Seals::SEAL;
        memfd::seal(file.as_fd(), seals).map_err(Error::os("sealing the identity"))?;
        let buffers = self.buffers.into_iter().map(|s| s.fd);
        let descriptors = [file, self.control].into_iter().chain(buffers).collect();
        Ok(PublishedSegments { page, descriptors })
    }
}

/// The memory of a job on one host, complete.
// Exhaustive: the caller takes it apart, and owns each part.
pub struct PublishedSegments {
    /// A mapping of the control page.
    pub page: ControlPage,
    /// The descriptors of the identity, of the control page, and of the buffers in order.
    pub descriptors: Vec<OwnedFd>,
}

/// A mapping of a control page at any address. Dropping it unmaps the page.
pub struct ControlPage {
    mapping: FileMapping,
    layout: ControlLayout,
}

impl ControlPage {
    /// Maps the control page `fd`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a file of another length than that of `layout`, [`Error::Os`].
    pub fn map(fd: BorrowedFd<'_>, layout: ControlLayout) -> Result<ControlPage> {
        let found = memfd::length(fd).map_err(Error::os("fstat of the control page"))?;
        if found != layout.length() {
            return Err(Error::Corrupt { word: "the control page's length", found });
        }
        let mapping = FileMapping::new(fd, 0, found, 1).map_err(|refused| {
            let (MappingRefused::Addresses(errno) | MappingRefused::File(errno)) = refused;
            Error::os("mapping the control page")(std::io::Error::from_raw_os_error(errno))
        })?;
        Ok(ControlPage { mapping, layout })
    }

    /// Returns a handle of the page, valid as long as this mapping.
    #[must_use]
    pub fn control(&self) -> Control<'_> {
        // SAFETY: mapped until drop, and the file cannot shrink (sealed; its length was checked).
        unsafe { Control::at(self.mapping.start(), self.layout) }
    }
}
