//! Real jobs: `hostbuf run` and `hostbuf exec` with real programs, on this host and on simulated
//! ones.
//!
//! What a machine lacks is not passed over in silence: [`harness::skip`] says it, and
//! `scripts/test` prints what was skipped, and why, at the end.

mod harness;

mod address;
mod arguments;
mod basic;
mod before_main;
mod containers;
mod debugging;
mod descendants;
mod doctor;
mod engines;
mod examples;
mod fake_gpu;
mod faults;
mod filling;
mod hostile;
mod late;
mod other_user;
mod process_limit;
mod registered;
mod simulated_hosts;
mod slurm;
mod space;
mod watched;
mod without_buffer;
