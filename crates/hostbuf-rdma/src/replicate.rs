//! Replication of a buffer to all hosts, by puts along a binary tree.
//!
//! ```text
//!          source            each host forwards a piece as soon as it has arrived,
//!         /      \           while the next one is arriving
//!        1        2
//!       / \      / \
//!      3   4    5   6        counted from the source
//! ```

use std::collections::VecDeque;

use crate::connect::pending::Pending;
use crate::limits::ALIVE_INTERVAL;
use crate::one_sided::fabric_state::FabricState;
use crate::one_sided::operations::put_with_signal;
use crate::one_sided::signal::Signal;
use crate::verbs::work_request::Operation;
use hostbuf::carrier::{Carrier, JoinedHosts};
use hostbuf::error::{Error, Failure, Result};
use hostbuf::job::HostIndex;
use hostbuf_register::Span;

/// The number of bytes of one put: small enough to keep a tree of hosts busy soon, large enough for
/// the full bandwidth of a link.
const PIECE: usize = 1 << 20;

/// The counts of the two internal signals before a replication, modulo 2^32.
#[derive(Clone, Copy)]
struct Baseline {
    pieces: u32,
    failures: u32,
}

impl Baseline {
    fn pack(self) -> u64 {
        u64::from(self.pieces) << 32 | u64::from(self.failures)
    }

    fn unpack(packed: u64) -> Baseline {
        Baseline { pieces: (packed >> 32) as u32, failures: packed as u32 }
    }
}

/// The tree along which the hosts forward a buffer.
#[derive(Clone, Copy)]
struct ForwardTree {
    /// The host at the root.
    source: HostIndex,
    /// The number of hosts.
    hosts: usize,
}

impl ForwardTree {
    fn children(self, host: HostIndex) -> Vec<HostIndex> {
        let position = self.position(host);
        let children = (2 * position + 1..=2 * position + 2).filter(|&child| child < self.hosts);
        children.map(|child| self.at(child)).collect()
    }

    fn parent(self, host: HostIndex) -> Option<HostIndex> {
        let position = self.position(host);
        (position > 0).then(|| self.at((position - 1) / 2))
    }

    /// Returns the position of `host`, counted from the source.
    fn position(self, host: HostIndex) -> usize {
        (host.0 + self.hosts - self.source.0) % self.hosts
    }

    fn at(self, position: usize) -> HostIndex {
        HostIndex((position + self.source.0) % self.hosts)
    }
}

impl Carrier for FabricState {
    fn joins(&self) -> JoinedHosts {
        JoinedHosts { start: self.span.start(), count: self.parts.len(), own: self.own }
    }

    fn number(&self) -> u64 {
        self.group.0
    }

    fn is_ready(&self) -> bool {
        self.lkey().is_ok()
    }

    fn prepare(&self) -> u64 {
        let pieces = self.signals.count(Signal::PIECE_ARRIVED) as u32;
        let failures = self.signals.count(Signal::REPLICATION_FAILED) as u32;
        Baseline { pieces, failures }.pack()
    }

    fn carry(
        &self,
        prepared: u64,
        source: HostIndex,
        bytes: usize,
        each: &mut dyn FnMut(usize, usize),
    ) -> Result<()> {
        let tree = ForwardTree { source, hosts: self.parts.len() };
        let (children, parent) = (tree.children(self.own), tree.parent(self.own));
        let result = self.forward(Baseline::unpack(prepared), &children, parent, bytes, each);
        if result.is_err() {
            // The children must not wait for more pieces.
            for &child in &children {
                let notify = || self.notify(child, Signal::REPLICATION_FAILED).and_then(Pending::wait);
                // The first attempt may only discover that the connection has failed; the second
                // makes a new one.
                if let Err(error) = notify().or_else(|_| notify()) {
                    tracing::warn!(host = child.0, %error, "cannot notify a host that replicating has failed");
                }
            }
        }
        result
    }
}

impl FabricState {
    fn forward(
        &self,
        baseline: Baseline,
        children: &[HostIndex],
        parent: Option<HostIndex>,
        bytes: usize,
        each: &mut dyn FnMut(usize, usize),
    ) -> Result<()> {
        let mut puts: VecDeque<Pending> = VecDeque::new();
        let mut offset = 0;
        while offset < bytes {
            let length = PIECE.min(bytes - offset);
            if let Some(parent) = parent {
                self.wait_for_pieces(baseline, parent, (offset / PIECE) as u64 + 1)?;
            }
            let span = Span::new(self.span.start() + offset, length)?;
            for &child in children {
                puts.push_back(put_with_signal(self, "replicate", child, span, Signal::PIECE_ARRIVED)?);
            }
            // A failure is reported early, rather than at the end.
            while let Some(first) = puts.front_mut()
                && first.test()?
            {
                puts.pop_front();
            }
            each(offset, length);
            offset += length;
        }
        puts.into_iter().try_for_each(Pending::wait)
    }

    fn wait_for_pieces(&self, baseline: Baseline, parent: HostIndex, pieces: u64) -> Result<()> {
        let since = |signal, before| u64::from((self.signals.count(signal) as u32).wrapping_sub(before));
        let has_arrived = || since(Signal::PIECE_ARRIVED, baseline.pieces) >= pieces;
        let has_failed = || since(Signal::REPLICATION_FAILED, baseline.failures) > 0;
        while !self.signals.wait_until(ALIVE_INTERVAL, &|| has_arrived() || has_failed()) {
            // The device acknowledges it as long as the process exists.
            let mut probe = Pending::new(&self.endpoint, parent.into(), "replicate")?;
            probe.post_empty(Operation::Write(self.part(parent)))?;
            probe.wait()?;
        }
        match has_arrived() {
            true => Ok(()),
            false => Err(Error::Peer { host: parent.0, doing: "replicate".into(), failure: Failure::GaveUp }),
        }
    }

    fn notify(&self, host: HostIndex, signal: Signal) -> Result<Pending> {
        let mut notification = Pending::new(&self.endpoint, host.into(), "replicate")?;
        let (remote, immediate) = (self.part(host), signal.to_immediate());
        notification.post_empty(Operation::WriteWithImmediate { remote, immediate })?;
        Ok(notification)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_is_a_child_of_its_parent() {
        for hosts in 1..20 {
            for source in 0..hosts {
                let tree = ForwardTree { source: HostIndex(source), hosts };
                for own in (0..hosts).map(HostIndex) {
                    let parent = tree.parent(own);
                    assert_eq!(parent.is_none(), own == tree.source);
                    for child in tree.children(own) {
                        assert_eq!(tree.parent(child), Some(own));
                    }
                    if let Some(parent) = parent {
                        assert!(tree.children(parent).contains(&own));
                    }
                }
            }
        }
    }

    #[test]
    fn packing_a_baseline_loses_nothing() {
        let baseline = Baseline::unpack(Baseline { pieces: 7, failures: u32::MAX }.pack());
        assert_eq!((baseline.pieces, baseline.failures), (7, u32::MAX));
    }
}
