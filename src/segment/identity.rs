//! The part of the control page that does not change while the ranks run.

#![allow(unsafe_code)]

use crate::error::{AttachError, Error, Result};
use crate::segment::options::NAME_MAX;
use crate::segment::page_layout::{ROW_LENGTH, STATE_LENGTH, STATES};
use hostbuf_memory::Pages;
use hostbuf_protocol::wire::MAX_BUFFERS;

const MAGIC: u64 = 0x6675_6274_736f_6801;
const VERSION: u32 = 1;

/// The part of the control page that does not change after the ranks have started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Identity {
    magic: u64,
    pub(super) version: u32,
    /// The lengths of the identity, of a row of the ledger and of a buffer's state. Two builds with
    /// different lengths reject each other's pages.
    layout: u32,
    /// The job's random number.
    pub job: [u64; 2],
    /// The address of the first buffer, the same on every host.
    pub address: u64,
    /// The number of bytes reserved at the address.
    pub length: u64,
    /// The index of this host in the job.
    pub host: u32,
    /// The number of hosts in the job, 0 before they have been compared (`hostbuf exec`).
    pub hosts: u32,
    /// The number of buffers.
    pub count: u32,
    /// The number of ballots and searches of the agreement.
    pub rounds: u32,
    /// The duration of each phase in microseconds, indexed by [`Phase`].
    pub phases: [u64; Phase::COUNT],
    /// The buffers.
    pub buffers: [BufferIdentity; MAX_BUFFERS],
    pub(super) checksum: u64,
}

/// One buffer's part of the identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct BufferIdentity {
    name: [u8; NAME_MAX + 1],
    /// The offset from the agreed address, in bytes.
    pub offset: u64,
    /// The requested size in bytes.
    pub size: u64,
    /// The mapped size in bytes.
    pub length: u64,
    /// The inode of the memory file.
    pub inode: u64,
    pages: u64,
    /// The number of bytes on huge pages.
    pub huge: u64,
    /// 1 if the pages are allocated at the first touch, 0 otherwise.
    pub lazy: u64,
    /// 1 if core files include the contents, 0 otherwise.
    pub dump: u64,
}

/// A phase of the start of a job, before `main`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The start of MPI in the agent.
    Engine = 0,
    /// The check for free memory, and the creation of the memory files.
    Create = 1,
    /// The allocation of the pages.
    Populate = 2,
    /// The wait for the ranks of all hosts.
    Gather = 3,
    /// The agreement on the address.
    Agree = 4,
    /// The mapping in all ranks.
    Map = 5,
}

impl Phase {
    /// The number of phases.
    pub const COUNT: usize = 6;
    /// All phases, in order.
    pub const ALL: [Phase; Phase::COUNT] =
        [Phase::Engine, Phase::Create, Phase::Populate, Phase::Gather, Phase::Agree, Phase::Map];

    /// Returns the name for messages and for JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        ["engine", "create", "populate", "gather", "agree", "map"][self as usize]
    }
}

impl BufferIdentity {
    /// Makes the identity of a buffer named `name` (cut at `NAME_MAX` bytes) on `pages`.
    #[must_use]
    pub fn new(name: &str, pages: Pages) -> BufferIdentity {
        let mut identity = BufferIdentity { pages: pages.code(), ..BufferIdentity::default() };
        let length = name.len().min(NAME_MAX);
        identity.name[..length].copy_from_slice(&name.as_bytes()[..length]);
        identity
    }

    /// Returns this identity with other pages.
    #[must_use]
    pub fn with_pages(self, pages: Pages) -> BufferIdentity {
        BufferIdentity { pages: pages.code(), ..self }
    }

    /// Returns the name of the buffer.
    #[must_use]
    pub fn name(&self) -> String {
        let length = self.name.iter().position(|&b| b == 0).unwrap_or(NAME_MAX);
        String::from_utf8_lossy(&self.name[..length]).into_owned()
    }

    /// Returns the kind of pages that were obtained.
    #[must_use]
    pub fn pages(&self) -> Pages {
        Pages::from_code(self.pages).unwrap_or(Pages::Small)
    }
}

impl Identity {
    /// Makes an identity without buffers.
    #[must_use]
    pub fn new(job: u128) -> Identity {
        Identity {
            magic: MAGIC,
            version: VERSION,
            layout: LAYOUT,
            job: [job as u64, (job >> 64) as u64],
            address: 0,
            length: 0,
            host: 0,
            hosts: 0,
            count: 0,
            rounds: 0,
            phases: [0; Phase::COUNT],
            buffers: [BufferIdentity::default(); MAX_BUFFERS],
            checksum: 0,
        }
    }

    /// Returns the buffers.
    #[must_use]
    pub fn buffers(&self) -> &[BufferIdentity] {
        &self.buffers[..(self.count as usize).min(MAX_BUFFERS)]
    }

    pub(super) fn digest(&self) -> u64 {
        // SAFETY: repr(C) of integers without padding between them (asserted below); the checksum
        // is last.
        let bytes = unsafe {
            let start = std::ptr::from_ref(self).cast::<u8>();
            std::slice::from_raw_parts(start, size_of::<Identity>() - size_of::<u64>())
        };
        xxhash_rust::xxh3::xxh3_64(bytes)
    }

    /// Checks the magic number, the checksum, and the version.
    ///
    /// # Errors
    /// [`Error::Attach`] for another version or layout; [`Error::Corrupt`] for any other invalid
    /// value.
    pub(super) fn check(&self) -> Result<()> {
        if self.magic != MAGIC {
            return Err(Error::Corrupt { word: "the magic number", found: self.magic });
        }
        if self.digest() != self.checksum {
            return Err(Error::Corrupt { word: "the identity's checksum", found: self.checksum });
        }
        if (self.version, self.layout) != (VERSION, LAYOUT) {
            let why = format!(
                "the buffers were made by another version of hostbuf (layout {}.{}, this program has {VERSION}.{LAYOUT}): use one version for launcher and program",
                self.version, self.layout
            );
            return Err(AttachError::OtherVersion { why }.into());
        }
        Ok(())
    }
}

const LAYOUT: u32 = (size_of::<Identity>() << 16 | ROW_LENGTH << 8 | STATE_LENGTH) as u32;
const _: () = assert!(size_of::<Identity>() < 1 << 16 && ROW_LENGTH < 1 << 8 && STATE_LENGTH < 1 << 8);
const _: () = assert!(size_of::<Identity>() <= STATES);
const _: () = assert!(size_of::<BufferIdentity>() == 32 + 8 * 8);
const _: () = assert!(
    size_of::<Identity>()
        == 8 + 8 + 16 + 16 + 16 + 8 * Phase::COUNT + MAX_BUFFERS * size_of::<BufferIdentity>() + 8
);
