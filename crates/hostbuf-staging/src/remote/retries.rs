//! Further attempts after temporary failures.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use super::remote_error::RemoteProblem;
use super::remote_options::RemoteOptions;
use super::response_check::FailedAttempt;

/// The longest time between two attempts, unless the server asks for more.
const LONGEST: Duration = Duration::from_secs(10);
/// The number of bytes after which the attempts count anew.
const PROGRESS: u64 = 64 << 10;

/// The attempts of one request.
#[derive(Debug)]
pub(super) struct Retries {
    attempts: u32,
    backoff: Duration,
    failures: u32,
    bytes: u64,
}

impl Retries {
    pub(super) fn new(options: &RemoteOptions) -> Retries {
        Retries { attempts: options.attempts, backoff: options.backoff, failures: 0, bytes: 0 }
    }

    /// Returns the number of failures in a row.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// Counts bytes that have arrived.
    pub(super) fn received(&mut self, bytes: u64) {
        self.bytes += bytes;
        if self.bytes >= PROGRESS {
            self.failures = 0;
        }
    }

    /// Waits for the time of the next attempt.
    ///
    /// # Errors
    /// The problem, if it is permanent or the last attempt has failed.
    pub(super) async fn after(&mut self, failed: FailedAttempt) -> Result<(), RemoteProblem> {
        self.failures += 1;
        self.bytes = 0;
        if !failed.problem.is_temporary() || self.failures >= self.attempts {
            return Err(failed.problem);
        }
        let doubled = self.backoff.saturating_mul(1 << (self.failures - 1).min(16)).min(LONGEST);
        let wait = failed.wait.unwrap_or_else(|| doubled.mul_f64(0.5 + random() / 2.0));
        tracing::debug!(problem = %failed.problem, ?wait, "trying again");
        tokio::time::sleep(wait).await;
        Ok(())
    }
}

/// Returns a random number from 0 to 1, so that clients that were refused together come back at
/// different times.
fn random() -> f64 {
    // Each state has other keys.
    RandomState::new().hash_one(0u8) as f64 / u64::MAX as f64
}
