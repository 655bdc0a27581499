//! The ranks that run the demo together: those of MPI, those of `hostbuf run` without MPI, or this
//! process alone.

use std::env;
use std::rc::Rc;

use hostbuf::job::{Collective, HostIndex, Hosts, Local, Solo};
use hostbuf::{Error, Result};

/// All ranks.
pub struct Team {
    /// The ranks, with a barrier that polls: for short operations.
    pub group: Rc<dyn Collective>,
    /// All ranks, with a barrier that sleeps instead of polling: for long waits.
    pub patient: Rc<dyn Collective>,
    /// The guard that ends MPI, after the groups are gone.
    #[cfg(feature = "mpi")]
    universe: Option<mpi::environment::Universe>,
}

/// A rank and its host.
pub struct Member {
    pub host: String,
    pub host_index: usize,
    /// An identifier that simulated hosts on one machine share.
    machine: u64,
}

impl Team {
    /// Joins the others.
    ///
    /// # Errors
    /// When the ranks cannot find each other.
    pub fn join() -> Result<Team> {
        let announced = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]
            .iter()
            .find_map(|name| env::var(name).ok()?.parse::<usize>().ok())
            .unwrap_or(1);
        #[cfg(feature = "mpi")]
        if ["OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMIX_RANK"].iter().any(|name| env::var_os(name).is_some()) {
            return Team::of_mpi(announced);
        }
        let group: Rc<dyn Collective> = if env::var_os("HOSTBUF_LOCAL_SIZE").is_some() {
            Rc::new(Local::from_env()?)
        } else if announced > 1 {
            return Err(Error::Unsupported {
                what: format!("a job of {announced} MPI ranks"),
                why: "this program was built without MPI; build it with --features mpi".into(),
            });
        } else {
            Rc::new(Solo)
        };
        Ok(Team {
            patient: group.clone(),
            group,
            #[cfg(feature = "mpi")]
            universe: None,
        })
    }

    #[cfg(feature = "mpi")]
    fn of_mpi(announced: usize) -> Result<Team> {
        use hostbuf::job::Mpi;
        use mpi::traits::Communicator;
        // `None` if other code has initialised MPI, which then also finalises it.
        let universe = mpi::initialize();
        let world = mpi::topology::SimpleCommunicator::world();
        if announced > 1 && world.size() == 1 {
            return Err(Error::Unsupported {
                what: format!("a job of {announced} ranks that are strangers to each other"),
                why: "this program was built for another MPI than the one that starts it".into(),
            });
        }
        let (group, patient) = (Rc::new(Mpi::new(&world)), Rc::new(Mpi::gentle(&world)));
        Ok(Team { group, patient, universe })
    }

    pub fn rank(&self) -> usize {
        self.group.rank()
    }

    pub fn size(&self) -> usize {
        self.group.size()
    }

    pub fn leads(&self) -> bool {
        self.rank() == 0
    }

    /// Returns all ranks' members, by rank.
    ///
    /// # Errors
    /// When a rank is lost.
    pub fn members(&self) -> Result<Vec<Member>> {
        const NAME: usize = 56;
        let mut mine = [0; NAME + 8];
        let name = hostname::get().map_or_else(|_| "?".into(), |n| n.to_string_lossy().into_owned());
        let length = name.len().min(NAME);
        mine[..length].copy_from_slice(&name.as_bytes()[..length]);
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or(name.into_bytes());
        let machine = boot.iter().fold(0, |hash, &byte| crate::kmer::spread(hash ^ u64::from(byte)));
        mine[NAME..].copy_from_slice(&machine.to_ne_bytes());
        let hosts = Hosts::new(&*self.group)?;
        let all = self.gather(&mine)?;
        let member = |(part, &HostIndex(host_index)): (&[u8; NAME + 8], &HostIndex)| {
            let host = String::from_utf8_lossy(part[..NAME].split(|&b| b == 0).next().unwrap_or(&[])).into();
            let machine = u64::from_ne_bytes(part[NAME..].try_into().expect("8 bytes"));
            Member { host, host_index, machine }
        };
        Ok(all.iter().zip(&hosts.host_of).map(member).collect())
    }

    /// Gathers the bytes of all ranks, by rank.
    ///
    /// # Errors
    /// When a rank is lost.
    pub fn gather<const N: usize>(&self, mine: &[u8; N]) -> Result<Vec<[u8; N]>> {
        let mut all = vec![0; N * self.size()];
        self.group.all_gather(mine, &mut all)?;
        Ok(all.chunks_exact(N).map(|part| part.try_into().expect("N bytes")).collect())
    }

    /// Ends all ranks if this one cannot go on, since the others would wait for it.
    pub fn abort(&self) -> ! {
        #[cfg(feature = "mpi")]
        if self.universe.is_some() {
            use mpi::traits::Communicator;
            mpi::topology::SimpleCommunicator::world().abort(1);
        }
        std::process::exit(1)
    }
}

/// Returns the number of hosts.
pub fn hosts(members: &[Member]) -> usize {
    members.iter().map(|m| m.host_index + 1).max().unwrap_or(1)
}

/// Returns the number of hosts on the machine of rank `of`: more than one if they are simulated.
pub fn hosts_of_machine(members: &[Member], of: usize) -> usize {
    let neighbours = members.iter().filter(|m| m.machine == members[of].machine);
    neighbours.map(|m| m.host_index).collect::<std::collections::BTreeSet<_>>().len()
}
