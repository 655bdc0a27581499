//! Mirrors between two pools of this process, which share nothing but a socket.

mod connections;
mod cutting_proxy;
mod frames;
mod lost_connections;
mod stopped_brokers;
mod strangers;
mod two_hosts;
