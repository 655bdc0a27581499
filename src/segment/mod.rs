//! A job's memory on one host: its files, their layout at the agreed address, and the control page.
//! Launchers and monitoring tools use this module; programs use [`HostBuffer`](crate::HostBuffer).

pub(crate) mod allocate;
pub(crate) mod attach;
mod checked;
pub(crate) mod control;
pub(crate) mod control_layout;
mod fields;
pub(crate) mod files;
pub(crate) mod fill_state;
pub(crate) mod fillers;
pub(crate) mod gpu_layout;
mod gpu_piece;
pub(crate) mod handle;
pub(crate) mod identity;
mod job_request;
pub(crate) mod layout;
pub(crate) mod ledger;
pub(crate) mod listed;
pub(crate) mod mapped_segment;
pub(crate) mod mapping;
mod name;
pub(crate) mod options;
mod options_text;
pub(crate) mod phase;
pub(crate) mod region_claims;
pub(crate) mod section;
mod section_identity;
mod section_text;
mod sections;

pub use control::Control;
pub use control_layout::ControlLayout;
pub use files::{
    CONTROL_NAME, COPIES_NAME, ControlPage, FILES_NAME, IDENTITY_NAME, LOADS_NAME, PublishedSegments,
    Segments, file_name,
};
pub use gpu_layout::{GPU_ADDRESS_ALIGNMENT, GPU_UNIT, gpu_pieces, gpu_range_length};
pub use gpu_piece::GpuPiece;
pub use identity::{BufferIdentity, Identity};
pub use job_request::{MAX_SECTIONS, check_all};
pub use layout::Layout;
pub use ledger::{Ledger, Registered};
pub use options::DEFAULT_NAME;
pub use section::{MAX_GPU_PIECES, SectionArgument};
pub use section_identity::{NodeBytes, SectionIdentity};
pub use section_text::add_sections;
