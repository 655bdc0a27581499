//! The binary interfaces that several MPIs have in common. One agent serves all MPIs with such an
//! interface.
//!
//! Names: MPICH.

/// A binary interface of MPIs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Abi {
    /// The flavour of its agent.
    pub(crate) flavour: &'static str,
    /// The name of the library that provides it.
    pub(crate) library: &'static str,
}

/// The standard ABI of MPI 5.0 (chapter 20). Its agent is built without an MPI.
pub(crate) const STANDARD: Abi = Abi { flavour: "mpi-abi", library: "libmpi_abi.so.1" };

/// The interface of the MPICH ABI Compatibility Initiative.
const MPICH: Abi = Abi { flavour: "mpich-abi", library: "libmpi.so.12" };

/// The only interface that implies how a resource manager starts a program.
pub(crate) const MANAGED: &Abi = &MPICH;

/// The interfaces of MPICH and of the MPIs that are made of it, the preferred one first.
pub(super) const SHARED: &[Abi] = &[STANDARD, MPICH];
