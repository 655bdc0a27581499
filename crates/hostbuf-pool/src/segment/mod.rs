//! Segments: the files of a producer's blocks, and their mappings.
//!
//! | file | written by | contents |
//! | --- | --- | --- |
//! | data | the producer | the blocks |
//! | table | the producer; the broker after its death, and the list of readers | states, headers, counters |
//! | row, one a reader | the reader; the broker after its death | holds, counters, latencies |
//! | events | nobody after it was made | on a GPU, where there is no data file: the handles of the blocks' events |
//!
//! The data file is sealed against new writable mappings once the producer has mapped it. Other
//! processes get read-only descriptors of tables and rows that they do not write.

mod client_entry;
mod data_view;
#[cfg(feature = "cuda")]
mod event_handles;
mod file_layout;
mod geometry;
mod row_view;
mod segment_file;
mod segment_mapping;
mod space_event;
mod table_lock;
mod table_view;

pub(crate) use client_entry::{ClientEntry, ClientIdentity};
pub(crate) use data_view::DataView;
#[cfg(feature = "cuda")]
pub(crate) use event_handles::{EventHandle, read_handles, write_handles};
pub(crate) use geometry::{BLOCK_UNIT, MAX_BLOCKS, SegmentGeometry};
pub(crate) use row_view::RowView;
pub(crate) use segment_file::{SegmentFile, ViewAccess};
pub(crate) use space_event::SpaceEvent;
pub(crate) use table_lock::{is_locked, open_locked};
pub(crate) use table_view::TableView;
