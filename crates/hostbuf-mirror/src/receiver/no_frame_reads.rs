//! Reading frames by RDMA: a build without the feature `rdma` does not.

use std::io;
use std::net::TcpStream;
use std::time::Instant;

use hostbuf_pool::Block;

use super::options::MirrorReceiverOptions;
use crate::wire::ReadEndpoint;

// The names under which the other files know the types of a build with RDMA.
pub(super) use self::{NoFrameReader as FrameReader, NoFrameReads as FrameReads};

/// The device by which a receiver reads frames: none.
#[derive(Debug)]
pub(super) struct NoFrameReader;

/// A connection by which frames are read. There are no values of this type.
#[derive(Debug)]
pub(super) enum NoFrameReads {}

impl NoFrameReader {
    pub(super) fn new(_options: &MirrorReceiverOptions) -> NoFrameReader {
        NoFrameReader
    }

    pub(super) fn accept(&self, _other: &ReadEndpoint) -> Option<NoFrameReads> {
        None
    }

    pub(super) fn tcp_reason(&self) -> Option<String> {
        None
    }

    pub(super) fn read(
        &self,
        reads: &mut NoFrameReads,
        _target: (&mut Block, u64),
        _remote: (u64, u32),
        _until: Instant,
        _limits: (&TcpStream, &dyn Fn() -> bool),
    ) -> io::Result<()> {
        match *reads {}
    }
}

impl NoFrameReads {
    pub(super) fn endpoint(&self) -> ReadEndpoint {
        match *self {}
    }
}
