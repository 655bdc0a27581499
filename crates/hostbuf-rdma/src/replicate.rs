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
use crate::one_sided::signals::{PIECE_ARRIVED, REPLICATION_FAILED};
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

/// Returns the children and the parent of host `own` in the tree with root `source`.
fn family(own: usize, source: usize, hosts: usize) -> (Vec<usize>, Option<usize>) {
    let position = (own + hosts - source) % hosts;
    let host = |position: usize| (position + source) % hosts;
    let children = (2 * position + 1..=2 * position + 2).filter(|&child| child < hosts).map(host).collect();
    (children, (position > 0).then(|| host((position - 1) / 2)))
}

impl Carrier for FabricState {
    fn joins(&self) -> JoinedHosts {
        JoinedHosts { start: self.span.start(), count: self.parts.len(), own: HostIndex(self.own) }
    }

    fn number(&self) -> u64 {
        self.group.0
    }

    fn is_ready(&self) -> bool {
        self.lkey().is_ok()
    }

    fn prepare(&self) -> u64 {
        let pieces = self.signals.count(PIECE_ARRIVED) as u32;
        let failures = self.signals.count(REPLICATION_FAILED) as u32;
        Baseline { pieces, failures }.pack()
    }

    fn carry(
        &self,
        prepared: u64,
        HostIndex(source): HostIndex,
        bytes: usize,
        each: &mut dyn FnMut(usize, usize),
    ) -> Result<()> {
        let (children, parent) = family(self.own, source, self.parts.len());
        let result = self.forward(Baseline::unpack(prepared), &children, parent, bytes, each);
        if result.is_err() {
            // The children must not wait for more pieces.
            for &child in &children {
                let notify = || self.notify(child, REPLICATION_FAILED).and_then(Pending::wait);
                // The first attempt may only discover that the connection has failed; the second
                // makes a new one.
                if let Err(error) = notify().or_else(|_| notify()) {
                    tracing::warn!(host = child, %error, "cannot notify a host that replicating has failed");
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
        children: &[usize],
        parent: Option<usize>,
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
                puts.push_back(put_with_signal(self, "replicate", child, span, PIECE_ARRIVED)?);
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

    fn wait_for_pieces(&self, baseline: Baseline, parent: usize, pieces: u64) -> Result<()> {
        let since = |signal, before| u64::from((self.signals.count(signal) as u32).wrapping_sub(before));
        let has_arrived = || since(PIECE_ARRIVED, baseline.pieces) >= pieces;
        let has_failed = || since(REPLICATION_FAILED, baseline.failures) > 0;
        while !self.signals.wait_until(ALIVE_INTERVAL, &|| has_arrived() || has_failed()) {
            // The device acknowledges it as long as the process exists.
            let mut probe = Pending::new(&self.endpoint, parent, "replicate")?;
            probe.post_empty(Operation::Write(self.parts[parent]))?;
            probe.wait()?;
        }
        match has_arrived() {
            true => Ok(()),
            false => Err(Error::Peer { host: parent, doing: "replicate".into(), failure: Failure::GaveUp }),
        }
    }

    fn notify(&self, host: usize, signal: usize) -> Result<Pending> {
        let mut notification = Pending::new(&self.endpoint, host, "replicate")?;
        let (remote, immediate) = (self.parts[host], signal as u32);
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
                for own in 0..hosts {
                    let (children, parent) = family(own, source, hosts);
                    assert_eq!(parent.is_none(), own == source);
                    for child in children {
                        assert_eq!(family(child, source, hosts).1, Some(own));
                    }
                    if let Some(parent) = parent {
                        assert!(family(parent, source, hosts).0.contains(&own));
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
