//! Messages between two ranks.

pub(crate) mod channel;
pub(crate) mod channel_options;
pub(crate) mod channel_requests;
pub(crate) mod channel_setup;
pub(crate) mod channel_state;
pub(crate) mod ring;
pub(crate) mod tag;
