//! Reads between two processes that exchange their addresses by a protocol of their own.

pub(crate) mod read_address;
pub(crate) mod read_connection;
pub(crate) mod read_device;
pub(crate) mod read_device_parts;
pub(crate) mod read_error;
