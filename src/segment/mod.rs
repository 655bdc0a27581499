//! A job's memory on one host: its files, their layout at the agreed address, and the control page.

pub(crate) mod allocate;
pub(crate) mod attach;
pub mod control;
pub(crate) mod handle;
pub mod layout;
pub mod ledger;
pub mod memory;
pub mod options;
