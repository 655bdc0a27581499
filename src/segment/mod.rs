//! A job's memory on one host: its files, their layout at the agreed address, and the control page.
//! Launchers and monitoring tools use this module; programs use [`HostBuffer`](crate::HostBuffer).

pub(crate) mod allocate;
pub(crate) mod attach;
mod checked;
pub(crate) mod control;
pub(crate) mod control_layout;
pub(crate) mod files;
pub(crate) mod fill_state;
pub(crate) mod fillers;
pub(crate) mod handle;
pub(crate) mod identity;
pub(crate) mod layout;
pub(crate) mod ledger;
pub(crate) mod listed;
pub(crate) mod mapped_segment;
pub(crate) mod mapping;
pub(crate) mod options;
pub(crate) mod phase;

pub use control::Control;
pub use control_layout::ControlLayout;
pub use files::{CONTROL_NAME, ControlPage, IDENTITY_NAME, PublishedSegments, Segments};
pub use identity::{BufferIdentity, Identity};
pub use layout::Layout;
pub use ledger::{Ledger, Registered};
pub use options::check_all;
