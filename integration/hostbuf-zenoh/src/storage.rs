//! The clients of a session.

#![allow(unsafe_code, reason = "zenoh's process-wide storage is a static that can change")]

use std::collections::BTreeSet;
use std::sync::Arc;

use hostbuf_pool::{Pool, PoolError, PoolId, PoolKind};
use zenoh::shm::{GLOBAL_CLIENT_STORAGE, ShmClient, ShmClientStorage};

use crate::client::PoolShmClient;
use crate::hold_sweeper::HoldSweeper;

/// Returns the clients for `zenoh::open(..).with_shm_clients(..)`: zenoh's own, and one for the
/// blocks of the pool and of its predecessors that still have segments.
///
/// A private pool adds no client: nothing of other processes could be mapped, so their messages
/// come as copies. After a restart of the broker, blocks of new producers come as copies, too,
/// until the session is opened again.
///
/// # Errors
/// [`PoolError`] if the broker does not answer.
pub fn client_storage(pool: &Pool) -> Result<Arc<ShmClientStorage>, PoolError> {
    let storage = ShmClientStorage::builder().with_default_client_set();
    if pool.kind() != PoolKind::Shared {
        return Ok(Arc::new(storage.build()));
    }
    let sweeper = HoldSweeper::start().map_err(|source| PoolError::Os {
        doing: "starting a thread for the holds of zenoh's buffers".into(),
        source,
    })?;
    let clients: Vec<Arc<dyn ShmClient>> = pools_with_segments(pool)?
        .into_iter()
        .map(|id| Arc::new(PoolShmClient::new(pool.clone(), id, sweeper.clone())) as Arc<dyn ShmClient>)
        .collect();
    Ok(Arc::new(storage.with_clients(&clients).build()))
}

/// Replaces zenoh's process-wide clients by those of [`client_storage`], for libraries that open
/// their sessions themselves. It must come before they open them.
///
/// # Errors
/// [`PoolError`] if the broker does not answer.
pub fn join_process(pool: &Pool) -> Result<(), PoolError> {
    let storage = client_storage(pool)?;
    *GLOBAL_CLIENT_STORAGE.write() = storage;
    Ok(())
}

/// Returns the connected pool and those of earlier brokers whose segments still exist.
fn pools_with_segments(pool: &Pool) -> Result<BTreeSet<PoolId>, PoolError> {
    let status = pool.status()?;
    let status: serde_json::Value = serde_json::from_str(&status).unwrap_or_default();
    let segments = status["segments"].as_array().into_iter().flatten();
    let listed = segments.filter_map(|segment| {
        let bits = u128::from_str_radix(segment["pool"].as_str()?, 16).ok()?;
        Some(PoolId::from_bits(bits))
    });
    Ok(listed.chain([pool.id()]).collect())
}
