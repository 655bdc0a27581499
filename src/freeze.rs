//! Making a buffer read-only for good.

#![allow(unsafe_code)]

use std::fs;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::fcntl::SealFlag;
use tracing::{info_span, warn};

use crate::error::{Error, Result};
use crate::job::{Collective, Hosts, Reduce, all_or_none, text_of_first};
use crate::preregistered;
use crate::segment::fill_state::FillState;
use crate::segment::handle::HostBuffer;
use hostbuf_memory::memfd;
use hostbuf_os::{process, raw};
use hostbuf_register::Span;
use hostbuf_register::own_ranges::Freezing;

/// How long pages may be held by nobody who can be seen before it counts as pinned: the kernel
/// itself holds some for a moment, when it makes huge pages of them or moves them, and so does
/// whoever reads a process's memory from outside. (The kernel waits 0.15 s itself.)
const MOMENT: Duration = Duration::from_secs(1);
/// Between two looks.
const PACE: Duration = Duration::from_millis(10);

/// A buffer that the ranks can no longer write: their mappings are read-only, and a stray write
/// faults.
#[derive(Clone, Debug)]
pub struct Frozen {
    buffer: HostBuffer,
    proof: Proof,
}

/// How sure it is that nobody on this host can write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The kernel sealed the memory against writing, which it does only while no writable mapping
    /// exists anywhere.
    Sealed,
    /// The ranks that froze can no longer write, and nobody can map it writable any more, but
    /// somebody may still hold a writable mapping from before.
    Weaker {
        /// Who, as far as `/proc` shows, or what else stood in the way.
        why: String,
    },
}

impl Frozen {
    /// The buffer.
    #[must_use]
    pub fn buffer(&self) -> &HostBuffer {
        &self.buffer
    }

    /// How sure it is.
    #[must_use]
    pub fn proof(&self) -> &Proof {
        &self.proof
    }

    /// All bytes. `None` unless the kernel has [sealed](Proof::Sealed) them: then nobody can change
    /// them while a slice exists.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        // SAFETY: mapped for reading as long as self lives, and by the seal no process can write to
        // it.
        let slice =
            || unsafe { std::slice::from_raw_parts(self.buffer.as_ptr().as_ptr(), self.buffer.len()) };
        (self.proof == Proof::Sealed).then(slice)
    }
}

impl HostBuffer {
    /// Makes the buffer read-only, in all ranks of `group` and, where the kernel can prove it, for
    /// everybody on every host. Collective over all ranks that have the buffer mapped; a process
    /// that is not in `group` and still maps it writable (a shell that started a rank, a child
    /// forked before) makes the proof [`Proof::Weaker`] on its host, which names it. Children
    /// forked afterwards inherit read-only memory.
    ///
    /// No device can write afterwards either, nor a peer through one: what a
    /// [`RegistrationCache`](crate::register::RegistrationCache) has of the buffer is ended, on all
    /// ranks, before anything is sealed, also what it was told to
    /// [keep](crate::register::RegistrationCache::keep). New registrations are for reading only. A
    /// [`Registration`](crate::register::Registration) for reading that is held meanwhile lives on;
    /// where its device pins pages (RDMA, CUDA) the kernel does not seal them, and the proof is
    /// [`Proof::Weaker`]: so register after freezing.
    ///
    /// What `hostbuf run --register` has registered is ended too, and registered again for reading
    /// once the buffer is sealed; its keys are others then.
    ///
    /// # Errors
    /// On all ranks: [`Error::Disagreed`] when they do not have one buffer; [`Error::Freeze`] when
    /// the buffer is not filled on every host, or a rank holds a
    /// [`Registration`](crate::register::Registration) or a lease by which a device can write into
    /// it (then nothing has been sealed, and it can be tried again); [`Error::Os`] when remapping
    /// fails.
    pub fn freeze(&self, group: &dyn Collective) -> Result<Frozen> {
        let _span = info_span!("freeze", buffer = %self.name()).entered();
        let hosts = Hosts::of(group)?;
        self.compare(group, &hosts)?;
        all_or_none(group, self.may_freeze())?;
        // Before anything that cannot be undone: the devices.
        let mut freezing = None;
        let begun = self.region(..).and_then(|span| Ok(Freezing::begin(span)?));
        all_or_none(group, begun.map(|begun| freezing = Some(begun)))?;
        // No new writable mapping from here on; then every rank gives up its own.
        let sealed = if hosts.leads() { self.add_seal(SealFlag::F_SEAL_FUTURE_WRITE) } else { Ok(()) };
        all_or_none(group, sealed)?;
        // What was registered before main may write, and pins pages, which would stand in the
        // proof's way.
        let span = Span::new(self.as_ptr().as_ptr() as usize, self.len())?;
        let ended = if preregistered::end(span) { Ok(()) } else { Err(still_registered(self)) };
        let ended = ended.and_then(|()| Ok(freezing.as_ref().map_or(Ok(()), Freezing::finish)?));
        all_or_none(group, ended)?;
        all_or_none(group, self.remap_read_only())?;
        let mut proof = Proof::Sealed;
        if hosts.leads() {
            proof = self.prove();
        }
        let proof = tell_host(&*hosts.local, proof)?;
        if !preregistered::again(span) {
            warn!(buffer = %self.name(), "what --register registered could not be registered again for reading");
        }
        group.barrier()?;
        freezing.into_iter().for_each(Freezing::keep);
        Ok(Frozen { buffer: self.clone(), proof })
    }

    fn may_freeze(&self) -> Result<()> {
        match self.fill_state()? {
            FillState::Filled | FillState::Frozen => Ok(()),
            FillState::Empty | FillState::Filling => Err(Error::not_frozen(format_args!(
                "buffer \"{}\" on {} is not filled: initialize and replicate it first",
                self.name(),
                process::host_name()
            ))),
        }
    }

    /// Adds a seal; one that is there already is fine.
    fn add_seal(&self, seal: SealFlag) -> Result<()> {
        let have = memfd::seals(self.fd()).map_err(Error::os("reading the seals of the buffer"))?;
        if have.contains(seal) {
            return Ok(());
        }
        memfd::seal(self.fd(), seal).map_err(Error::os(format!("sealing the buffer with {seal:?}")))
    }

    fn remap_read_only(&self) -> Result<()> {
        let (at, length) = (self.as_ptr().as_ptr() as usize, self.len());
        // SAFETY: the same file over its own mapping: every byte stays what and where it is, so
        // references remain valid; only the right to write goes.
        unsafe { raw::map_over(at, length, raw::PROT_READ, self.fd().as_raw_fd(), 0) }.map_err(|e| {
            Error::os(format!("mapping {length} bytes at {at:#x} read-only"))(
                std::io::Error::from_raw_os_error(e.0),
            )
        })?;
        if self.identity().dump == 0 {
            // SAFETY: keeps a range out of core files, as before the remapping; refused, a core is
            // only larger.
            let _ = unsafe { raw::advise(at, length, raw::MADV_DONTDUMP) };
        }
        Ok(())
    }

    /// Asks the kernel for the proof. For the host's leader.
    fn prove(&self) -> Proof {
        let begun = Instant::now();
        let proof = loop {
            let sealed =
                self.add_seal(SealFlag::F_SEAL_WRITE).and_then(|()| self.add_seal(SealFlag::F_SEAL_SEAL));
            let why = match sealed {
                Ok(()) => break Proof::Sealed,
                Err(Error::Os { source, .. }) if source.raw_os_error() == Some(libc::EBUSY) => {
                    let holders = writers(self);
                    if holders.is_empty() && begun.elapsed() < MOMENT {
                        std::thread::sleep(PACE);
                        continue;
                    }
                    let host = process::host_name();
                    if holders.is_empty() {
                        format!(
                            "on {host} a device has pages of it pinned (a registration from before), or a process that is \
                             not visible from here has it mapped writable"
                        )
                    } else {
                        format!("still mapped writable on {host} by {}", holders.join(", "))
                    }
                }
                Err(error) => error.to_string(),
            };
            break Proof::Weaker { why };
        };
        if let Proof::Weaker { why } = &proof {
            warn!(buffer = %self.name(), why, "the kernel could not prove that nobody writes");
        }
        self.control().set_fill(self.index, FillState::Frozen);
        proof
    }
}

fn still_registered(buffer: &HostBuffer) -> Error {
    let (name, host, pid) = (buffer.name(), process::host_name(), std::process::id());
    Error::not_frozen(format_args!(
        "in process {pid} on {host} a registration of \"{name}\" by --register does not end"
    ))
}

/// The leader's proof to all ranks of the host.
fn tell_host(local: &dyn Collective, proof: Proof) -> Result<Proof> {
    let mut weaker = [u64::from(proof != Proof::Sealed)];
    local.all_reduce(&mut weaker, Reduce::Max)?;
    if weaker[0] == 0 {
        return Ok(Proof::Sealed);
    }
    let mine = if let Proof::Weaker { why } = &proof { why } else { "" };
    Ok(Proof::Weaker { why: text_of_first(local, mine)? })
}

/// The processes of this host that map the buffer writable, as far as they can be seen.
fn writers(buffer: &HostBuffer) -> Vec<String> {
    let inode = buffer.identity().inode.to_string();
    let maps_it = |pid: i32| {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        maps.lines().any(|line| {
            let mut fields = line.split_ascii_whitespace().skip(1);
            let rights = fields.next().unwrap_or("");
            rights.contains('w') && fields.nth(2) == Some(&inode) && line.contains("hostbuf:")
        })
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|&pid| maps_it(pid)).map(|pid| format!("process {pid} ({})", process::name(pid))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Solo;
    use crate::{BufferOptions, Pages};

    /// A pipe that holds a page of the buffer, as long as its reading end is open.
    fn holding(buffer: &HostBuffer) -> std::io::PipeReader {
        let (reader, writer) = std::io::pipe().unwrap();
        let page = libc::iovec { iov_base: buffer.as_ptr().as_ptr().cast(), iov_len: 4096 };
        // SAFETY: a page of the buffer's, which lives longer, and which nobody writes through the
        // pipe.
        assert_eq!(unsafe { libc::vmsplice(writer.as_raw_fd(), &raw const page, 1, 0) }, 4096);
        reader
    }

    #[test]
    fn pages_that_are_held_for_a_moment_do_not_stand_in_the_way() {
        let filled = || {
            let options = BufferOptions::new(1 << 16).pages(Pages::Small);
            let buffer = HostBuffer::allocate(&Solo, options).unwrap();
            buffer.initialize(|arena| arena.place(1u64)).unwrap();
            buffer
        };
        let buffer = filled();
        let held = holding(&buffer);
        let frozen = buffer.freeze(&Solo).unwrap();
        assert!(matches!(frozen.proof(), Proof::Weaker { why } if why.contains("pinned")), "{frozen:?}");
        drop(held);
        assert_eq!(buffer.freeze(&Solo).unwrap().proof(), &Proof::Sealed);

        let buffer = filled();
        let held = holding(&buffer);
        let frozen = std::thread::scope(|scope| {
            scope.spawn(move || {
                // Longer than the kernel waits.
                std::thread::sleep(Duration::from_millis(300));
                drop(held);
            });
            buffer.freeze(&Solo)
        });
        assert_eq!(frozen.unwrap().proof(), &Proof::Sealed);
    }
}
