//! The ranks of a job, host by host.

use super::Collective;
use crate::error::{Error, Result};
use hostbuf_os::process;

/// The index of a host of a group, from 0 in the order of the leaders' ranks. Among the leaders it
/// is also the rank of the host's leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
// Exhaustive: a number, and nothing else.
pub struct HostIndex(pub usize);

/// The ranks of a group, by host.
#[non_exhaustive]
pub struct Hosts {
    /// The ranks of this host.
    pub local: Box<dyn Collective>,
    /// The leaders of all hosts, in the order of their ranks. On a rank that leads no host: the
    /// group of all such ranks.
    pub leaders: Box<dyn Collective>,
    /// The index of this host.
    pub index: HostIndex,
    /// The number of hosts.
    pub count: usize,
    /// The index of the host of each rank of the whole group.
    pub host_of: Vec<HostIndex>,
}

impl Hosts {
    /// Determines which ranks share a host. Ranks share a host if they have the same running kernel
    /// and the same network namespace.
    ///
    /// # Errors
    /// [`Error::Collective`].
    pub fn new(group: &dyn Collective) -> Result<Hosts> {
        Hosts::by_identity(group, process::host_identity())
    }

    fn by_identity(group: &dyn Collective, identity: u64) -> Result<Hosts> {
        let mut all = vec![0; 8 * group.size()];
        group.all_gather(&identity.to_ne_bytes(), &mut all)?;
        let identities: Vec<&[u8]> = all.chunks_exact(8).collect();
        let leader_of = |rank: usize| identities.iter().position(|&i| i == identities[rank]).unwrap_or(rank);
        let leaders: Vec<usize> = (0..group.size()).filter(|&rank| leader_of(rank) == rank).collect();
        let host_of: Vec<HostIndex> = (0..group.size())
            .map(|rank| HostIndex(leaders.binary_search(&leader_of(rank)).unwrap_or(0)))
            .collect();
        let me = group.rank();
        let index = *host_of
            .get(me)
            .ok_or(Error::Collective { operation: "all_gather", why: "no such rank".into() })?;
        let local = group.split(index.0)?;
        let leads = leader_of(me) == me;
        let leaders_group = group.split(usize::from(!leads))?;
        Ok(Hosts { local, leaders: leaders_group, index, count: leaders.len(), host_of })
    }

    /// Returns whether this rank is the leader of its host.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.local.rank() == 0
    }
}
