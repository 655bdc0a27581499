//! The user's handle of a GPU section.

use crate::agree::election;
use crate::error::{Error, Result};
use crate::gpu::host_gpus::HostGpus;
use crate::job::{Collective, Hosts, Reduce, all_or_none};
use crate::preregistered;
use crate::proof::Proof;
use crate::segment::GpuPiece;
use crate::segment::handle::HostBuffer;
use hostbuf_cuda::DeviceSpan;
use hostbuf_os::process;

/// A section of a buffer on one or several GPUs, mapped at one address in all ranks of all hosts
/// that use GPUs. All GPUs that the process sees have access to it; the CPU has none.
///
/// The address is an ordinary device pointer: kernels, copies and the CUDA runtime take it.
/// Pointers within the sections are valid in all these ranks. The contents are undefined at first,
/// and hostbuf orders nothing: finish the work that writes to the section before other ranks read.
///
/// ```no_run
/// # use hostbuf::HostBuffer;
/// // hostbuf run -n 2 --section name=table,size=4G,gpu=0 -- ./app
/// let buffer = HostBuffer::attach()?;
/// let table = buffer.gpu_section("table")?;
/// println!("{} bytes at {:#x}", table.len(), table.address());
/// # Ok::<(), hostbuf::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct GpuSection {
    buffer: HostBuffer,
    /// The position among the GPU sections of the buffer.
    index: usize,
    /// The address of the range of all GPU sections.
    range: u64,
    pieces: Vec<GpuPiece>,
}

impl HostBuffer {
    /// Returns the GPU sections of the buffer, each with its pieces, in the order of their
    /// addresses. Every rank gets them, also one that does not use GPUs.
    pub fn gpu_section_pieces(&self) -> impl Iterator<Item = &[GpuPiece]> {
        self.segment.identity.gpu_sections(self.index)
    }

    /// Returns a GPU section by its name.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the buffer has no such section; [`Error::Unsupported`] if this process
    /// has not mapped it before `main`; [`Error::Corrupt`].
    pub fn gpu_section(&self, name: &str) -> Result<GpuSection> {
        let mut sections = self.gpu_section_pieces().enumerate();
        let Some((index, pieces)) = sections.find(|(_, pieces)| pieces[0].section == name) else {
            let known: Vec<&str> =
                self.gpu_section_pieces().map(|pieces| pieces[0].section.as_str()).collect();
            let known =
                if known.is_empty() { "it has none".into() } else { format!("it has {}", known.join(", ")) };
            let buffer = self.name();
            return Err(Error::invalid(match self.section(name) {
                Ok(_) => format!(
                    "section \"{name}\" of buffer \"{buffer}\" is host memory: get it by section (in C and Fortran \
                     hostbuf_section), or request it with gpu= (--section name={name},size=2G,gpu=0)"
                ),
                Err(_) => format!(
                    "buffer \"{buffer}\" has no GPU section \"{name}\": {known}; request it with the buffer (--section \
                     name={name},size=2G,gpu=0)"
                ),
            }));
        };
        let mapped = preregistered::maps_gpu_sections();
        let Some(range) = self.control().gpu_range(self.index)?.filter(|_| mapped) else {
            return Err(Error::Unsupported {
                what: format!("GPU section \"{name}\""),
                why: format!(
                    "process {} on {} did not map it before main, and the CUDA driver never grants addresses that were mapped \
                     when it was initialised. If this is a rank, start the job with --gpu-ranks all. If it is a child process, \
                     use the section in the rank instead, or start the program by exec",
                    std::process::id(),
                    process::host_name()
                ),
            });
        };
        Ok(GpuSection { buffer: self.clone(), index, range, pieces: pieces.to_vec() })
    }
}

impl GpuSection {
    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.pieces[0].section
    }

    /// Returns the address of the first byte on the GPUs, the same in every rank of every host that
    /// uses GPUs.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.range + self.pieces[0].offset
    }

    /// Returns the number of bytes: the requested size, rounded up to a multiple of 2 MiB, and at
    /// least 2 MiB for each entry of `gpu=`.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a section has at least one byte")]
    pub fn len(&self) -> usize {
        self.pieces.iter().map(|piece| piece.length as usize).sum()
    }

    /// Returns the pieces of the section, in the order of their addresses.
    #[must_use]
    pub fn pieces(&self) -> &[GpuPiece] {
        &self.pieces
    }

    /// Returns whether the section has been frozen on this host.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn is_frozen(&self) -> Result<bool> {
        self.buffer.control().is_gpu_frozen(self.buffer.index, self.index)
    }

    /// Takes the right to write from the GPUs of this process if the section is frozen: for a
    /// process that has just mapped it.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; [`Error::Unsupported`] with the driver's reason.
    #[doc(hidden)]
    pub fn follow_freeze(&self) -> Result<()> {
        match self.is_frozen()? {
            true => HostGpus::find()?.set_access(self.span(), false),
            false => Ok(()),
        }
    }

    /// Checks that all ranks of the group have the same section.
    fn is_same(&self, group: &dyn Collective) -> Result<()> {
        let mine = self.index as u64;
        let mut words = [mine, !mine];
        group.all_reduce(&mut words, Reduce::Min)?;
        if words[0] == !words[1] {
            return Ok(());
        }
        let why =
            format!("it freezes the GPU section \"{}\", and another rank freezes another one", self.name());
        Err(election::disagreement(group, (mine != words[0]).then(|| (group.rank(), why))))
    }

    /// Lets the GPUs of this process write again after a freeze that has failed, unless the section
    /// was frozen before: some of them may have lost the right already. Collective.
    fn undo_freeze(
        &self,
        group: &dyn Collective,
        hosts: &Hosts,
        gpus: &HostGpus,
        was_frozen: bool,
    ) -> Result<()> {
        if !was_frozen
            && let Err(error) = self.record(hosts, false).and_then(|()| gpus.set_access(self.span(), true))
        {
            tracing::error!(
                section = self.name(),
                %error,
                "cannot restore the access to the section after a failed freeze; some GPUs of this process can only read it"
            );
        }
        group.barrier()
    }

    /// Records on each host whether the section is frozen.
    fn record(&self, hosts: &Hosts, frozen: bool) -> Result<()> {
        if !hosts.leads() {
            return Ok(());
        }
        self.buffer.control().set_gpu_frozen(self.buffer.index, self.index, frozen)
    }

    fn span(&self) -> DeviceSpan {
        DeviceSpan::new(self.address(), self.len())
    }

    /// Makes the section read-only in place, for all GPUs of all ranks of `group`. Collective over
    /// all ranks that use GPUs. A kernel that writes to it afterwards ends with
    /// `cudaErrorIllegalAddress`, which breaks the context of its process. Later programs of the
    /// job map it read-only.
    ///
    /// Finish all work that writes to the section first. The proof is always [`Proof::Weaker`],
    /// since GPU memory cannot be sealed.
    ///
    /// # Errors
    /// On all ranks: [`Error::Disagreed`] if the ranks do not have one section;
    /// [`Error::Unsupported`] with the driver's reason, and a section that was writable stays
    /// writable.
    pub fn freeze(&self, group: &dyn Collective) -> Result<Proof> {
        let hosts = Hosts::new(group)?;
        self.buffer.compare(group, &hosts)?;
        self.is_same(group)?;
        let gpus = all_or_none(group, HostGpus::find())?;
        let was_frozen = all_or_none(group, self.is_frozen())?;
        // A program that maps the section once this is recorded has no right to write.
        let changed = all_or_none(group, self.record(&hosts, true))
            .and_then(|()| all_or_none(group, gpus.set_access(self.span(), false)));
        if changed.is_err() {
            self.undo_freeze(group, &hosts, &gpus, was_frozen)?;
        }
        changed?;
        Ok(Proof::Weaker {
            why: format!(
                "GPU memory cannot be sealed: a process of this user that has a descriptor of section \"{}\" on {} can map it \
                 for writing",
                self.name(),
                process::host_name()
            ),
        })
    }
}
