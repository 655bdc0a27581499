//! The process of the broker at the other end of a connection.

use std::os::fd::AsFd;

use hostbuf_os::{FrameSocket, socket};

use super::pool_options::PoolOptions;
use crate::broker::{BrokerOptions, has_client_file};

/// Returns the process of the broker at the other end, if it is visible here.
///
/// The kernel names the process that had called `listen` last when the client connected. That is a
/// service manager, or an earlier broker, until a broker has taken the socket over. They have not
/// the file of the broker's clients.
pub(super) fn peer_broker(socket: &FrameSocket, options: &PoolOptions) -> Option<i32> {
    let peer = socket::peer(socket.as_fd()).ok().filter(|peer| peer.pid > 0)?;
    let broker = BrokerOptions::new().name(&options.socket);
    let broker = match &options.path {
        Some(path) => broker.path(path),
        None => broker,
    };
    has_client_file(peer.pid, &broker).then_some(peer.pid)
}
