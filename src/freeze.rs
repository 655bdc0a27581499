//! Making a buffer permanently read-only.

#![allow(unsafe_code, reason = "replaces the mapping of the buffer by a read-only one")]

use std::fs;
use std::os::fd::AsRawFd;

use tracing::{info_span, warn};

use crate::error::{Error, Result};
use crate::job::{Collective, Hosts, Reduce, all_or_none, text_of_first};
use crate::node_copies::RankNode;
use crate::preregistered;
use crate::proof::Proof;
use crate::segment::fill_state::FillState;
use crate::segment::handle::HostBuffer;
use hostbuf_memory::{Pages, Seals, memfd};
use hostbuf_os::{process, raw};
use hostbuf_register::Span;
use hostbuf_register::own_ranges::Freezing;

/// A buffer that the ranks can no longer write to: their mappings are read-only, and a stray write
/// faults.
#[derive(Clone, Debug)]
pub struct Frozen {
    buffer: HostBuffer,
    proof: Proof,
    rank_nodes: Vec<RankNode>,
}

impl Frozen {
    /// Returns the buffer.
    #[must_use]
    pub fn buffer(&self) -> &HostBuffer {
        &self.buffer
    }

    /// Returns the certainty that no process can write.
    #[must_use]
    pub fn proof(&self) -> &Proof {
        &self.proof
    }

    /// Returns the NUMA node from whose memory each rank of the group reads the sections with
    /// [`Placement::Copies`](crate::Placement::Copies), in the order of the ranks. The list is
    /// empty if the buffer has no such section.
    #[must_use]
    pub fn rank_nodes(&self) -> &[RankNode] {
        &self.rank_nodes
    }

    /// Returns all bytes, or `None` unless the kernel has [sealed](Proof::Sealed) them: only then
    /// can no process change them while a slice exists.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        // SAFETY: mapped for reading as long as self lives, and by the seal no process can write
        // there.
        let slice =
            || unsafe { std::slice::from_raw_parts(self.buffer.as_ptr().as_ptr(), self.buffer.len()) };
        (self.proof == Proof::Sealed).then(slice)
    }
}

impl HostBuffer {
    /// Makes the buffer read-only, in all ranks of `group` and, where the kernel can prove it, for
    /// all processes of every host. Collective over all ranks that have the buffer mapped. A
    /// process that is not in `group` and still maps the buffer writable (a shell that started a
    /// rank, a child forked before) makes the proof [`Proof::Weaker`] on its host, and the proof
    /// names it. Children forked afterwards inherit read-only memory.
    ///
    /// Afterwards no device can write either, nor can a remote host through a device: all ranks end
    /// the registrations of the buffer in each
    /// [`RegistrationCache`](crate::register::RegistrationCache) before the memory is sealed,
    /// including those that are [kept](crate::register::RegistrationCache::keep). New registrations
    /// can only be for reading. A [`Registration`](crate::register::Registration) for reading that
    /// is held during the freeze stays valid. If its device pins pages (RDMA, CUDA), the kernel
    /// does not seal them, and the proof is [`Proof::Weaker`]: register after freezing to avoid
    /// this.
    ///
    /// The registrations of `hostbuf run --register` are ended too. Once the buffer is sealed, it
    /// is registered again for reading, with new keys.
    ///
    /// Sections with [`Placement::Copies`](crate::Placement::Copies) then get a copy on the NUMA
    /// node of each rank, at the same address. [`Frozen::rank_nodes`] names the nodes. A copy takes
    /// as much memory as the sections, is sealed like the buffer, and lasts as long as a rank maps
    /// it. A rank that may run on cores of several nodes reads from the node with most of them.
    /// Processes that attach later read from the first node.
    ///
    /// # Errors
    /// On all ranks: [`Error::Disagreed`] if the ranks do not have one buffer; [`Error::Freeze`] if
    /// the buffer is not filled on every host, or if a rank holds a
    /// [`Registration`](crate::register::Registration) or a lease by which a device can write to it
    /// (in this case nothing has been sealed, and the call can be repeated); [`Error::Os`] if
    /// remapping fails. [`Error::Freeze`] is also returned if the buffer is frozen but its copies
    /// cannot be made: a node has too little memory, the buffer is not sealed, or the checksum of a
    /// copy differs. All ranks then read the original pages, and the call can be repeated.
    pub fn freeze(&self, group: &dyn Collective) -> Result<Frozen> {
        let _span = info_span!("freeze", buffer = %self.name()).entered();
        let hosts = Hosts::new(group)?;
        self.compare(group, &hosts)?;
        all_or_none(group, self.may_freeze())?;
        // The devices come first: the later steps cannot be undone.
        let mut freezing = None;
        let begun = self.region(..).and_then(|span| Ok(Freezing::begin(span)?));
        all_or_none(group, begun.map(|begun| freezing = Some(begun)))?;
        // From here on there is no new writable mapping; then every rank gives up its own.
        let sealed = if hosts.leads() { self.add_seal(Seals::FUTURE_WRITE, || false) } else { Ok(()) };
        all_or_none(group, sealed)?;
        // Registrations made before main may write, and pin pages, which would prevent the seal.
        let span = Span::new(self.as_ptr().as_ptr() as usize, self.len())?;
        let ended = if preregistered::deregister(span) { Ok(()) } else { Err(still_registered(self)) };
        let ended = ended.and_then(|()| Ok(freezing.as_ref().map_or(Ok(()), Freezing::finish)?));
        all_or_none(group, ended)?;
        // Copies of an earlier freeze are read-only already.
        let remapped = if self.read_node().is_some() { Ok(()) } else { self.remap_read_only() };
        all_or_none(group, remapped)?;
        let mut proof = Proof::Sealed;
        if hosts.leads() {
            proof = self.prove();
        }
        let proof = share_proof(&*hosts.local, proof)?;
        let rank_nodes = self.copy_to_nodes(group, &hosts, &proof);
        // Another thread may have registered the original pages for reading meanwhile. If that
        // registration is in use, it keeps them, and its bytes stay right.
        if let (Ok([_, ..]), Some(freezing)) = (rank_nodes.as_deref(), &freezing)
            && let Err(error) = freezing.finish()
        {
            warn!(buffer = %self.name(), %error, "a registration keeps the original pages of a copied section");
        }
        if !preregistered::register_again(span) {
            warn!(buffer = %self.name(), "the buffer could not be registered again for reading, as --register demands");
        }
        group.barrier()?;
        freezing.into_iter().for_each(Freezing::keep);
        Ok(Frozen { buffer: self.clone(), proof, rank_nodes: rank_nodes? })
    }

    fn may_freeze(&self) -> Result<()> {
        match self.fill_state()? {
            FillState::Filled | FillState::Frozen => Ok(()),
            FillState::Empty | FillState::Filling => Err(Error::not_frozen(format_args!(
                "buffer \"{}\" on {} is not filled. Initialize and replicate it first",
                self.name(),
                process::host_name()
            ))),
        }
    }

    /// Adds a seal, unless the file has it already. While the kernel answers `EBUSY`, retries for
    /// up to a second as long as `may_retry` returns true.
    fn add_seal(&self, seal: Seals, may_retry: impl FnMut() -> bool) -> Result<()> {
        let have = memfd::seals(self.fd()).map_err(Error::os("reading the seals of the buffer"))?;
        if have.contains(seal) {
            return Ok(());
        }
        let sealed = memfd::seal_when_free(self.fd(), seal, may_retry);
        sealed.map_err(Error::os(format!("sealing the buffer with {seal:?}")))
    }

    /// Maps the memory of the buffer read-only over its own mapping, or over that of copies.
    pub(crate) fn remap_read_only(&self) -> Result<()> {
        let (at, length) = (self.as_ptr().as_ptr() as usize, self.len());
        // SAFETY: no byte changes or moves, so references remain valid; only the permission to
        // write ends. Copies have the same bytes.
        unsafe { self.map_read_only(at, length, self.fd().as_raw_fd(), 0) }
    }

    /// Maps `length` bytes of `fd` from `offset` on read-only over a part of the buffer.
    ///
    /// # Safety
    /// `at` and `length` must be a part of the buffer, in whole pages, and the file must have the
    /// same bytes as that part. No other process may write to them.
    pub(crate) unsafe fn map_read_only(&self, at: usize, length: usize, fd: i32, offset: u64) -> Result<()> {
        // SAFETY: by the contract of this function.
        unsafe { raw::map_over(at, length, raw::PROT_READ, fd, offset, raw::MAP_SHARED) }.map_err(|e| {
            Error::os(format!("mapping {length} bytes at {at:#x} read-only"))(
                std::io::Error::from_raw_os_error(e.0),
            )
        })?;
        if self.pages() == Pages::Small {
            // SAFETY: it changes no contents. Small pages stay small, as before the remapping.
            let _ = unsafe { raw::advise(at, length, raw::MADV_NOHUGEPAGE) };
        }
        if !self.identity().dump {
            // SAFETY: excludes a range from core files, as before the remapping. If it fails, a
            // core file is only larger.
            let _ = unsafe { raw::advise(at, length, raw::MADV_DONTDUMP) };
        }
        Ok(())
    }

    /// Asks the kernel for the proof. Called by the host's leader.
    fn prove(&self) -> Proof {
        let mut holders = Vec::new();
        let is_held_briefly = || {
            holders = writers(self);
            holders.is_empty()
        };
        let sealed = self.add_seal(Seals::WRITE, is_held_briefly);
        let proof = match sealed.and_then(|()| self.add_seal(Seals::SEAL, || false)) {
            Ok(()) => Proof::Sealed,
            Err(Error::Os { source, .. }) if source.raw_os_error() == Some(libc::EBUSY) => {
                let host = process::host_name();
                let why = if holders.is_empty() {
                    format!(
                        "on {host} a device has pages of the buffer pinned (by an earlier registration), or a process that is \
                         not visible from here maps it writable"
                    )
                } else {
                    format!("the buffer is still mapped writable on {host} by {}", holders.join(", "))
                };
                Proof::Weaker { why }
            }
            Err(error) => Proof::Weaker { why: error.to_string() },
        };
        if let Proof::Weaker { why } = &proof {
            warn!(buffer = %self.name(), why, "the kernel could not prove that no process can write");
        }
        self.control().set_fill(self.index, FillState::Frozen);
        proof
    }
}

fn still_registered(buffer: &HostBuffer) -> Error {
    let (name, host, pid) = (buffer.name(), process::host_name(), std::process::id());
    Error::not_frozen(format_args!(
        "in process {pid} on {host} the registration of \"{name}\" by --register does not end"
    ))
}

/// Passes the leader's proof to all ranks of the host.
fn share_proof(local: &dyn Collective, proof: Proof) -> Result<Proof> {
    let mut weaker = [u64::from(proof != Proof::Sealed)];
    local.all_reduce(&mut weaker, Reduce::Max)?;
    if weaker[0] == 0 {
        return Ok(Proof::Sealed);
    }
    let mine = if let Proof::Weaker { why } = &proof { why } else { "" };
    Ok(Proof::Weaker { why: text_of_first(local, mine)? })
}

/// Returns the processes of this host that map the buffer writable, as far as they are visible.
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
    use std::time::Duration;

    use super::*;
    use crate::job::Solo;
    use crate::{BufferOptions, Pages};

    /// Returns a pipe that holds a page of the buffer as long as its read end is open.
    fn holding(buffer: &HostBuffer) -> std::io::PipeReader {
        let (reader, writer) = std::io::pipe().unwrap();
        let page = libc::iovec { iov_base: buffer.as_ptr().as_ptr().cast(), iov_len: 4096 };
        // SAFETY: a page of the buffer, which outlives the pipe; nothing writes to the page through
        // the pipe.
        assert_eq!(unsafe { libc::vmsplice(writer.as_raw_fd(), &raw const page, 1, 0) }, 4096);
        reader
    }

    #[test]
    fn pages_that_are_held_briefly_do_not_prevent_the_seal() {
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
                // Longer than the wait of the kernel.
                std::thread::sleep(Duration::from_millis(300));
                drop(held);
            });
            buffer.freeze(&Solo)
        });
        assert_eq!(frozen.unwrap().proof(), &Proof::Sealed);
    }
}
