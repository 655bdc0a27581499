//! The frames that a receiver reads by RDMA: none, in a build without the feature `rdma`.

use super::options::MirrorSenderOptions;
use super::queue::QueuedFrame;
use crate::wire::{FrameSource, ReadEndpoint};

// The names under which the other files know the types of a build with RDMA.
pub(super) use self::{NoFrameOffers as FrameOffers, NoOfferedMemory as OfferedMemory};

/// The memory of a sender that receivers read: none.
#[derive(Debug)]
pub(super) struct NoOfferedMemory;

/// The frames that a receiver reads by RDMA. There are no values of this type.
#[derive(Debug)]
pub(super) enum NoFrameOffers {}

impl NoOfferedMemory {
    pub(super) fn new(_options: &MirrorSenderOptions) -> NoOfferedMemory {
        NoOfferedMemory
    }

    pub(super) fn prepare(&self) -> Result<Option<NoFrameOffers>, String> {
        Ok(None)
    }
}

impl NoFrameOffers {
    pub(super) fn endpoint(&self) -> ReadEndpoint {
        match *self {}
    }

    pub(super) fn connect(&self, _other: &ReadEndpoint) -> Result<(), String> {
        match *self {}
    }

    pub(super) fn offer(&mut self, _frame: &QueuedFrame) -> Result<(FrameSource, bool), String> {
        match *self {}
    }

    pub(super) fn end(&mut self, _number: u64) {
        match *self {}
    }

    pub(super) fn withdraw(&mut self, _number: u64) {
        match *self {}
    }

    pub(super) fn has_failed(&self) -> bool {
        match *self {}
    }
}
