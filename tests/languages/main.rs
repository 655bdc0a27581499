//! hostbuf in C, C++, Fortran and Python: the examples over every installed MPI with one
//! libhostbuf, the interfaces in one process, the pages in docs, and the contents of an
//! installation.

#[path = "../jobs/harness.rs"]
#[allow(dead_code, reason = "not all of it is wanted here")]
mod harness;

mod copies;
mod examples;
mod guides;
mod installed;
mod interface;
mod misuse;
mod python;
