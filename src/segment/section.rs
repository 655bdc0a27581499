//! The request for a section: a part of a buffer with a placement of its own, or GPU memory.

use std::fmt;

use crate::error::{Bytes, Error, Result};
use crate::segment::name;
use hostbuf_memory::placement::Placement;

/// The maximum number of GPUs that all sections of a job list: the descriptors of their memory fit
/// into one message.
pub const MAX_GPU_PIECES: usize = 128;

/// A section of a buffer: a named part whose pages are on NUMA nodes of their own. The sections of
/// a buffer are contiguous from its beginning, each on whole pages. A section begins at the same
/// address on every host.
///
/// A section with [`gpus`](Section::gpus) is GPU memory instead. It is not part of the buffer's
/// bytes, and has an address of its own, which is also the same in all ranks:
/// [`HostBuffer::gpu_section`](crate::HostBuffer::gpu_section).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Section {
    /// The name: at most 31 bytes of letters, digits, `_`, `-` and `.`.
    pub name: String,
    /// The number of usable bytes, rounded up to whole pages.
    pub size: u64,
    /// The placement of the pages, `None` for that of the buffer.
    pub numa: Option<Placement>,
    /// The GPUs of the host, by their numbers in the order of their PCI addresses (as `nvidia-smi`
    /// numbers them). The section is divided into one piece for each entry, in this order; a GPU
    /// may be named several times. Empty for host memory.
    pub gpus: Vec<u32>,
}

impl Section {
    /// Makes a section of `size` bytes with the placement of its buffer.
    #[must_use]
    pub fn new(name: impl Into<String>, size: u64) -> Section {
        Section { name: name.into(), size, numa: None, gpus: Vec::new() }
    }

    /// Sets the NUMA nodes of the pages.
    #[must_use]
    pub fn numa(mut self, placement: Placement) -> Section {
        self.numa = Some(placement);
        self
    }

    /// Makes the section memory of these GPUs.
    #[must_use]
    pub fn gpus(mut self, numbers: impl IntoIterator<Item = u32>) -> Section {
        self.gpus = numbers.into_iter().collect();
        self
    }

    /// Returns whether the section is GPU memory.
    #[must_use]
    pub fn is_on_gpus(&self) -> bool {
        !self.gpus.is_empty()
    }

    /// Checks the options of the section.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a size of 0, an invalid name, too many GPUs, or GPUs and NUMA nodes.
    pub(super) fn check(&self) -> Result<()> {
        name::check(&self.name)?;
        if self.size == 0 {
            let name = &self.name;
            return Err(Error::invalid(format!(
                "section \"{name}\" has size 0: a section has at least one byte"
            )));
        }
        if self.gpus.len() > MAX_GPU_PIECES {
            let (name, count) = (&self.name, self.gpus.len());
            return Err(Error::invalid(format!(
                "section \"{name}\" lists {count} GPUs: expected at most {MAX_GPU_PIECES}: list fewer in gpu="
            )));
        }
        match &self.numa {
            Some(placement) if self.is_on_gpus() => Err(Error::invalid(format!(
                "section \"{}\" has gpu={} and numa={placement}: a section lies in GPU memory or on NUMA nodes; leave out one of the two",
                self.name,
                gpu_list(&self.gpus)
            ))),
            _ => Ok(()),
        }
    }
}

/// Formats the numbers of GPUs: `0,1`.
pub(super) fn gpu_list(gpus: &[u32]) -> String {
    gpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// A section with the name of its buffer, as command lines contain it:
/// `buffer=default,name=grid,size=4G,numa=0`.
#[derive(Clone, Debug, PartialEq, Eq)]
// Exhaustive: the two parts of the text.
pub struct SectionArgument {
    /// The name of the buffer.
    pub buffer: String,
    /// The section.
    pub section: Section,
}

impl fmt::Display for SectionArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SectionArgument { buffer, section } = self;
        write!(f, "buffer={buffer},name={},size={}", section.name, section.size)?;
        section.numa.iter().try_for_each(|placement| write!(f, ",numa={placement}"))?;
        if section.is_on_gpus() { write!(f, ",gpu={}", gpu_list(&section.gpus)) } else { Ok(()) }
    }
}

/// Formats a length for messages about sections.
pub(super) fn bytes(length: u64) -> String {
    format!("{} ({length} bytes)", Bytes(length))
}
