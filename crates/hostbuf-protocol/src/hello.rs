//! The first statements of a participant: its part in the job, and the way in which its program
//! gets the buffer.

/// The part of the address space in which a participant may hold addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
// Exhaustive: an agent must know each, to choose candidates.
pub enum AddressWindow {
    /// Any free range.
    Anywhere = 0,
    /// Only in the window that ThreadSanitizer and MemorySanitizer leave to applications.
    Sanitized = 1,
}

/// The way in which a rank's program gets the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u64)]
// Exhaustive: an agent must handle each.
pub enum Coverage {
    /// The preloaded object maps it before `main`.
    Preloaded = 0,
    /// Nothing can be preloaded, but the program contains the library and can attach.
    Attaches = 1,
    /// Nothing can be preloaded, and the program cannot attach.
    None = 2,
}

/// The identification of a participant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// Exhaustive: a sender sets every field of the message.
pub struct Hello {
    /// Its part in the job.
    pub role: Role,
    /// The rank in the first world of the job.
    pub rank: u64,
    /// The number of ranks of the job, 0 if the engine does not report it.
    pub size: u64,
    /// The rank on this host.
    pub local_rank: u64,
    /// The number of ranks on this host.
    pub local_size: u64,
    /// A number that is the same in all participants that request the same buffers.
    pub request: u64,
}

/// The part of a participant in the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
#[non_exhaustive]
pub enum Role {
    /// A rank of the job: it votes, and the job waits for it.
    Rank = 1,
    /// A later program, a child or a spawned process: it maps the agreed range.
    Late = 2,
    /// The library in a process, which requests the agreed range and the descriptors.
    Library = 3,
    /// A rank that takes part in collective operations among the ranks of this host, through the
    /// agent.
    Member = 4,
    /// A client of a pool's broker, which speaks the pool's own protocol after its hello.
    PoolClient = 5,
    /// A later program of a rank that maps the GPU sections: it requests their address and the
    /// descriptors.
    GpuUser = 6,
}

impl AddressWindow {
    pub(crate) fn from_number(number: u64) -> Option<AddressWindow> {
        [AddressWindow::Anywhere, AddressWindow::Sanitized].into_iter().find(|&known| known as u64 == number)
    }
}

impl Coverage {
    pub(crate) fn from_number(number: u64) -> Option<Coverage> {
        [Coverage::Preloaded, Coverage::Attaches, Coverage::None]
            .into_iter()
            .find(|&known| known as u64 == number)
    }
}

impl Hello {
    /// Returns the identification of a process that is no rank.
    #[must_use]
    pub fn of(role: Role) -> Hello {
        Hello { role, rank: 0, size: 0, local_rank: 0, local_size: 0, request: 0 }
    }

    /// Returns the identification with these numbers, or `None` if it is invalid.
    pub(crate) fn from_numbers(
        [role, rank, size, local_rank, local_size, request]: [u64; 6],
    ) -> Option<Hello> {
        let role = [Role::Rank, Role::Late, Role::Library, Role::Member, Role::PoolClient, Role::GpuUser]
            .into_iter()
            .find(|&candidate| candidate as u64 == role)?;
        let ranked = !matches!(role, Role::Rank | Role::Member)
            || (local_rank < local_size
                && local_size <= 1 << 20
                && (size == 0 || (rank < size && size <= 1 << 40)));
        ranked.then_some(Hello { role, rank, size, local_rank, local_size, request })
    }

    /// Returns the numbers of the identification.
    pub(crate) fn to_numbers(self) -> [u64; 6] {
        let Hello { role, rank, size, local_rank, local_size, request } = self;
        [role as u64, rank, size, local_rank, local_size, request]
    }
}
