//! hostbuf in C, C++, Fortran and Python: the examples over every MPI that is here, with one
//! libhostbuf, the interfaces by themselves, the pages in docs, and what an installation has.

#[path = "../jobs/harness.rs"]
#[allow(dead_code, reason = "not all of it is wanted here")]
mod harness;

mod examples;
mod guides;
mod installed;
mod interface;
mod misuse;
mod python;
