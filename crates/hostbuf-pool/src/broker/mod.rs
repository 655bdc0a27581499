//! The broker: the process that makes the segments of its user's pools.
//!
//! It is the only maker of memory, so its limits are exact. It is not in the data path: a client
//! talks to it when it makes, attaches or leaves a segment. It watches the processes of its
//! clients, takes back what they held when they end, and keeps what others still read.

mod accounts;
mod awaited_clients;
mod broker_tag;
mod charges;
mod client_record;
mod departures;
mod descriptor_store;
mod hand_back;
mod listeners;
mod options;
mod outbox;
mod passed_descriptors;
mod pending_attach;
mod pending_create;
mod predecessor;
mod queued_packet;
mod recovery;
mod requests;
mod segment_bytes;
mod segment_data;
mod segment_maker;
mod segment_record;
mod serve;
mod service_manager;
mod state;
mod status_text;
mod stored_segment;

pub use options::BrokerOptions;
pub(crate) use predecessor::has_client_file;
pub use serve::Broker;
