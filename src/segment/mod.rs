//! A job's memory on one host: its files, their layout at the agreed address, and the control page.

pub(crate) mod allocate;
pub(crate) mod attach;
mod checked;
pub mod control;
pub mod files;
pub mod fill_state;
pub(crate) mod fillers;
pub(crate) mod handle;
pub mod identity;
pub mod layout;
pub mod ledger;
pub(crate) mod mapped_segment;
pub(crate) mod mapping;
pub mod options;
pub mod page_layout;
