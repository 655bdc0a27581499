//! Connections between processes: exchange of endpoint information, connect messages, and operations in progress.

pub(crate) mod connect_message;
pub(crate) mod connections;
pub(crate) mod device_selection;
pub(crate) mod endpoint;
pub(crate) mod endpoint_info;
pub(crate) mod pending;
