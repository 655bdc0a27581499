//! MPI through its standard ABI, which MPI 5.0 defines (chapter 20): the types and constants have
//! the same values in every library `libmpi_abi.so.1`. The library is loaded when the agent starts,
//! so the agent is built without an MPI, and serves all MPIs with the ABI.
//!
//! rsmpi does not compile against the header of the ABI, which has no conversions to Fortran's
//! handles, so the calls of an agent are declared here.

mod calls;
mod communicator;

pub use communicator::StandardMpi;
