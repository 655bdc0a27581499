//! The regions of buffers that parts of this process use alone.

use std::sync::Mutex;

use hostbuf_os::poison::IgnorePoison;
use hostbuf_register::Span;

/// The regions of buffers that parts of this process use alone.
#[derive(Debug, Default)]
pub(crate) struct RegionClaims(Mutex<Vec<Span>>);

impl RegionClaims {
    /// Claims a region, or returns a claimed one that overlaps it.
    pub(crate) fn claim(&self, region: Span) -> Result<(), Span> {
        let mut claimed = self.0.lock().ignore_poison();
        match claimed.iter().find(|other| other.overlaps(region)) {
            Some(&other) => Err(other),
            None => {
                claimed.push(region);
                Ok(())
            }
        }
    }

    /// Ends the claim on a region.
    pub(crate) fn release(&self, region: Span) {
        self.0.lock().ignore_poison().retain(|&other| other != region);
    }
}
