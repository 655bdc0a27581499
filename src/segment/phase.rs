//! The phases of the start of a job.

/// A phase of the start of a job, before `main`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
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
