//! The group of all agents of a job.

#[cfg(feature = "mpi")]
use hostbuf::Error;
use hostbuf::Result;
use hostbuf::job::{Collective, Solo};

use crate::mpi_abi::StandardMpi;

/// A function that opens the group of all agents. It runs in the coordinator's thread; dropping the
/// returned guard shuts the engine down.
pub type Open = fn() -> Result<(Box<dyn Collective>, Box<dyn std::any::Any>)>;

/// Returns the group of this agent alone.
pub fn alone() -> Result<(Box<dyn Collective>, Box<dyn std::any::Any>)> {
    Ok((Box::new(Solo), Box::new(())))
}

/// Opens the group of the agents as a job of any MPI with the standard ABI.
///
/// # Errors
/// [`hostbuf::Error::Unsupported`] if the MPI does not have it.
pub fn over_standard_abi() -> Result<(Box<dyn Collective>, Box<dyn std::any::Any>)> {
    let mpi = StandardMpi::init()?;
    Ok((mpi.world()?, Box::new(mpi)))
}

/// Opens the group of the agents as an MPI job.
#[cfg(feature = "mpi")]
pub fn over_mpi() -> Result<(Box<dyn Collective>, Box<dyn std::any::Any>)> {
    let universe = mpi::initialize().ok_or_else(|| Error::Unsupported {
        what: "MPI".into(),
        why: "it was initialised already in this agent".into(),
    })?;
    let group = hostbuf::job::Mpi::gentle(&universe.world());
    Ok((Box::new(group), Box::new(universe)))
}
