//! A provider of messages in the blocks of a pool.

#![allow(unsafe_code, reason = "zenoh takes policies with a state by an unsafe function only")]

use hostbuf_pool::{Pool, ProducerOptions};
use zenoh::Wait;
use zenoh::shm::{ShmProvider, ShmProviderBuilder, ZAllocError, ZLayoutError, ZShmMut};

use crate::backend::PoolBackend;
use crate::policy::PoolPolicy;
use crate::provider_error::ProviderError;

/// A provider of messages in the blocks of a pool: one block for each message.
#[derive(Debug)]
pub struct PoolProvider {
    provider: ShmProvider<PoolBackend>,
    policy: PoolPolicy,
}

impl PoolProvider {
    /// Makes a segment of the pool, and a provider of its blocks. Each message takes one block
    /// until its last reader has dropped it. A reader may hold all blocks unless the options state
    /// a quota: zenoh loses a message that a reader may not hold.
    ///
    /// # Errors
    /// [`ProviderError`].
    pub fn new(pool: &Pool, options: &ProducerOptions) -> Result<PoolProvider, ProviderError> {
        let mut options = options.clone();
        options.quota = options.quota.or(Some(options.blocks));
        let backend = PoolBackend::new(pool.producer(&options)?)?;
        let policy = PoolPolicy::new(&backend);
        let provider = ShmProviderBuilder::backend(backend).wait();
        Ok(PoolProvider { provider, policy })
    }

    /// Allocates a message of `length` bytes. It does not wait.
    ///
    /// # Errors
    /// [`ProviderError::TooLong`] beyond the length of a block; [`ProviderError::Exhausted`] while
    /// readers hold all blocks. A payload of ordinary memory can be sent instead, which zenoh
    /// copies.
    pub fn alloc(&self, length: usize) -> Result<ZShmMut, ProviderError> {
        // SAFETY: the policy gives out no block that is in use.
        let result = unsafe { self.provider.alloc(length).with_runtime_policy(self.policy.clone()) }.wait();
        result.map_err(|error| match error {
            zenoh::shm::ZLayoutAllocError::Layout(
                ZLayoutError::ProviderIncompatibleLayout | ZLayoutError::IncorrectLayoutArgs,
            ) => ProviderError::TooLong { length },
            zenoh::shm::ZLayoutAllocError::Alloc(ZAllocError::OutOfMemory) => ProviderError::Exhausted,
            other => ProviderError::Zenoh(other.to_string()),
        })
    }

    /// Returns zenoh's provider, for its other ways to allocate.
    #[must_use]
    pub fn as_zenoh(&self) -> &ShmProvider<PoolBackend> {
        &self.provider
    }

    /// Returns the policy, for the other ways to allocate.
    #[must_use]
    pub fn policy(&self) -> &PoolPolicy {
        &self.policy
    }
}
