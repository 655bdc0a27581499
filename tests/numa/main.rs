//! Virtual machines with several NUMA nodes and PCI trees, one for each layout of
//! `scripts/numa-vm`. A machine boots once, and runs the checks of several modules one after the
//! other.

mod binding;
mod copies;
mod layout;
mod machine;
mod machines;
mod memory;
mod placement;
mod script;
mod topology;
