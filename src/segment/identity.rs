//! The part of the control page that never changes once the ranks run.

#![allow(unsafe_code)]

use crate::error::{AttachError, Error, Result};
use crate::segment::options::NAME_MAX;
use crate::segment::page_layout::{ROW_LENGTH, STATE_LENGTH, STATES};
use hostbuf_memory::Pages;
use hostbuf_protocol::wire::MAX_BUFFERS;

const MAGIC: u64 = 0x6675_6274_736f_6801;
const VERSION: u32 = 1;

/// The part that never changes after the ranks have gone on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Identity {
    magic: u64,
    pub(super) version: u32,
    /// The lengths of the identity, of a row of the ledger and of a buffer's state: two builds that
    /// lay them out differently refuse each other.
    layout: u32,
    /// The job's random number.
    pub job: [u64; 2],
    /// Where the first buffer begins: the same on every host.
    pub address: u64,
    /// The bytes reserved there.
    pub length: u64,
    /// Which host of the job this is.
    pub host: u32,
    /// How many hosts the job has, 0 when they have not been compared yet (`hostbuf exec`).
    pub hosts: u32,
    /// How many buffers.
    pub count: u32,
    /// How many ballots and searches the agreement took.
    pub rounds: u32,
    /// Microseconds of each phase, as [`Phase`] counts them.
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
    /// From the agreed address, bytes.
    pub offset: u64,
    /// What the user asked for, bytes.
    pub size: u64,
    /// What is mapped, bytes.
    pub length: u64,
    /// The inode of the memory file.
    pub inode: u64,
    pages: u64,
    /// How many of its bytes stand on huge pages.
    pub huge: u64,
    /// Whether the pages are taken at the first touch.
    pub lazy: u64,
    /// Whether the contents go into core files.
    pub dump: u64,
}

/// What takes time before `main`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Starting MPI in the agent.
    Engine = 0,
    /// Checking for space and making the memory files.
    Create = 1,
    /// Taking the pages.
    Populate = 2,
    /// Waiting for the ranks of all hosts to be there.
    Gather = 3,
    /// Agreeing on the address.
    Agree = 4,
    /// Mapping in all ranks.
    Map = 5,
}

impl Phase {
    /// How many phases there are.
    pub const COUNT: usize = 6;
    /// All of them, in order.
    pub const ALL: [Phase; Phase::COUNT] =
        [Phase::Engine, Phase::Create, Phase::Populate, Phase::Gather, Phase::Agree, Phase::Map];

    /// For people and for JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        ["engine", "create", "populate", "gather", "agree", "map"][self as usize]
    }
}

impl BufferIdentity {
    /// A buffer named `name` (cut at 31 bytes) on `pages`.
    #[must_use]
    pub fn new(name: &str, pages: Pages) -> BufferIdentity {
        let mut identity = BufferIdentity { pages: pages.code(), ..BufferIdentity::default() };
        let length = name.len().min(NAME_MAX);
        identity.name[..length].copy_from_slice(&name.as_bytes()[..length]);
        identity
    }

    /// The same on other pages.
    #[must_use]
    pub fn with_pages(self, pages: Pages) -> BufferIdentity {
        BufferIdentity { pages: pages.code(), ..self }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> String {
        let length = self.name.iter().position(|&b| b == 0).unwrap_or(NAME_MAX);
        String::from_utf8_lossy(&self.name[..length]).into_owned()
    }

    /// The pages that were obtained.
    #[must_use]
    pub fn pages(&self) -> Pages {
        Pages::from_code(self.pages).unwrap_or(Pages::Small)
    }
}

impl Identity {
    /// An identity without buffers.
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

    /// The buffers.
    #[must_use]
    pub fn buffers(&self) -> &[BufferIdentity] {
        &self.buffers[..(self.count as usize).min(MAX_BUFFERS)]
    }

    pub(super) fn digest(&self) -> u64 {
        // SAFETY: repr(C) of integers without padding between them (checked below), checksum last.
        let bytes = unsafe {
            let start = std::ptr::from_ref(self).cast::<u8>();
            std::slice::from_raw_parts(start, size_of::<Identity>() - size_of::<u64>())
        };
        xxhash_rust::xxh3::xxh3_64(bytes)
    }

    /// # Errors
    /// [`Error::Attach`] for another version or layout; [`Error::Corrupt`] for anything else that
    /// does not fit.
    pub(super) fn check(&self) -> Result<()> {
        if self.magic != MAGIC {
            return Err(Error::Corrupt { word: "the magic number", found: self.magic });
        }
        if self.digest() != self.checksum {
            return Err(Error::Corrupt { word: "the identity's checksum", found: self.checksum });
        }
        if (self.version, self.layout) != (VERSION, LAYOUT) {
            let why = format!(
                "it was made by another version of hostbuf (layout {}.{}, this is {VERSION}.{LAYOUT}): use one version for launcher and program",
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
