//! Connections between processes, and the operations on them.

pub(crate) mod bootstrap;
pub(crate) mod bootstrap_error;
pub(crate) mod connect_message;
pub(crate) mod connections;
pub(crate) mod device_resources;
pub(crate) mod device_selection;
pub(crate) mod endpoint;
pub(crate) mod endpoint_info;
pub(crate) mod greeting;
pub(crate) mod pending;
pub(crate) mod progress_thread;
pub(crate) mod record_stream;
pub(crate) mod tcp_bootstrap;
