//! A buffer's bytes to all hosts, by puts along a tree.
//!
//! ```text
//!          source            each host hands a piece on as soon as it has it,
//!         /      \           while the next one comes
//!        1        2
//!       / \      / \
//!      3   4    5   6        counted from the source
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use crate::buffer::carrier::Carrier;
use crate::error::{Error, Failure, Result};
use crate::rdma::connect::pending::Pending;
use crate::rdma::one_sided::fabric::{GAVE_UP, PIECES, Shared};
use crate::rdma::one_sided::operations::put_and_tell;
use crate::rdma::verbs::queue_pair::What;
use crate::register::Span;

/// One put: small enough that a tree of hosts is soon busy, large enough for the full speed of a link.
const PIECE: usize = 1 << 20;
/// How often a host that waits for pieces asks whether the one they come from is there at all.
const ALIVE: Duration = Duration::from_secs(1);

/// The numbers of the two signals before.
fn unpack(prepared: u64) -> (u64, u64) {
    (prepared >> 32, prepared & 0xffff_ffff)
}

/// Those to whom number `own` hands on, and the one it gets from.
fn family(own: usize, source: usize, hosts: usize) -> (Vec<usize>, Option<usize>) {
    let place = (own + hosts - source) % hosts;
    let host = |place: usize| (place + source) % hosts;
    let children = (2 * place + 1..=2 * place + 2).filter(|&child| child < hosts).map(host).collect();
    (children, (place > 0).then(|| host((place - 1) / 2)))
}

impl Carrier for Shared {
    fn joins(&self) -> (usize, usize, usize) {
        (self.span.start(), self.keys.len(), self.own)
    }

    fn number(&self) -> u64 {
        self.number
    }

    fn is_ready(&self) -> bool {
        self.local_key().is_ok()
    }

    fn prepare(&self) -> u64 {
        // Both fit: what is more than 2^32 ago is compared modulo that.
        (self.signals.count(PIECES) & 0xffff_ffff) << 32 | self.signals.count(GAVE_UP) & 0xffff_ffff
    }

    fn carry(
        &self,
        prepared: u64,
        source: usize,
        bytes: usize,
        each: &mut dyn FnMut(usize, usize),
    ) -> Result<()> {
        let (children, parent) = family(self.own, source, self.keys.len());
        let result = self.hand_on(prepared, &children, parent, bytes, each);
        if result.is_err() {
            // Who waits for more shall not wait.
            for &child in &children {
                let told = || self.tell(child, GAVE_UP).and_then(Pending::wait);
                // The first one may only find out that the connection has failed; the second goes by a new one.
                if let Err(error) = told().or_else(|_| told()) {
                    tracing::warn!(host = child, %error, "it does not hear that replicating has failed");
                }
            }
        }
        result
    }
}

impl Shared {
    fn hand_on(
        &self,
        prepared: u64,
        children: &[usize],
        parent: Option<usize>,
        bytes: usize,
        each: &mut dyn FnMut(usize, usize),
    ) -> Result<()> {
        let mut puts: VecDeque<Pending> = VecDeque::new();
        let mut at = 0;
        while at < bytes {
            let length = PIECE.min(bytes - at);
            if let Some(parent) = parent {
                self.wait_for_piece(prepared, parent, (at / PIECE) as u64 + 1)?;
            }
            let span = Span::new(self.span.start() + at, length)?;
            for &child in children {
                puts.push_back(put_and_tell(self, "replicate", child, span, PIECES as u32)?);
            }
            // What has failed is heard of soon, and not at the end.
            while let Some(first) = puts.front_mut()
                && first.test()?
            {
                puts.pop_front();
            }
            each(at, length);
            at += length;
        }
        puts.into_iter().try_for_each(Pending::wait)
    }

    fn wait_for_piece(&self, prepared: u64, parent: usize, pieces: u64) -> Result<()> {
        let (before, gave_up) = unpack(prepared);
        let since = |count: u64, before: u64| count.wrapping_sub(before) & 0xffff_ffff;
        let has = || since(self.signals.count(PIECES), before) >= pieces;
        let has_failed = || since(self.signals.count(GAVE_UP), gave_up) > 0;
        while !self.signals.wait_until(ALIVE, &|| has() || has_failed()) {
            // Answered by the device as long as the process lives.
            let mut asking = Pending::to(&self.endpoint, parent, "replicate")?;
            let what = What::Write { address: self.span.start() as u64, key: self.keys[parent] };
            asking.post_nothing(what)?;
            asking.wait()?;
        }
        match has() {
            true => Ok(()),
            false => Err(Error::Peer { host: parent, doing: "replicate".into(), failure: Failure::GaveUp }),
        }
    }

    fn tell(&self, host: usize, number: usize) -> Result<Pending> {
        let mut telling = Pending::to(&self.endpoint, host, "replicate")?;
        let (address, key) = (self.span.start() as u64, self.keys[host]);
        telling.post_nothing(What::WriteAndTell { address, key, number: number as u32 })?;
        Ok(telling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_has_one_parent_and_is_its_child() {
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
}
