//! zenoh's shared memory over the blocks of a hostbuf pool.
//!
//! A [`PoolProvider`] allocates messages in the blocks of a pool, one block for each message, and
//! [`client_storage`] lets a session read them in place. zenoh itself decides for each partner: a
//! session without the protocol of this pool gets an ordinary copy.
//!
//! ```no_run
//! use hostbuf_pool::{Pool, PoolMode, PoolOptions, ProducerOptions};
//! use hostbuf_zenoh::{PoolProvider, client_storage};
//! use zenoh::Wait;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let pool = Pool::connect(PoolOptions::new("camera").mode(PoolMode::Required))?;
//! let provider = PoolProvider::new(&pool, &ProducerOptions::new(1920 * 1080 * 4, 8))?;
//! let session =
//!     zenoh::open(zenoh::Config::default()).with_shm_clients(client_storage(&pool)?).wait()?;
//! let mut frame = provider.alloc(1920 * 1080 * 4)?;
//! frame[0] = 1;
//! session.put("camera/left", frame).wait()?;
//! # Ok(())
//! # }
//! ```
//!
//! # The death of a process
//!
//! zenoh counts the references of a message in shared memory, and never gets back what a killed
//! process held. Here each reader also holds the block in its row of the pool, which the broker
//! clears when the process has ended. A provider that has no free block takes those back that no
//! living process holds. A message that was still on its way then is lost, and never torn: its
//! generation has gone.
//!
//! # Limits
//!
//! zenoh gives 128 bits less to a chunk than a token has: the protocol identifies the pool by 31
//! bits of a hash. A message is at most as long as a block. Readers map blocks for reading only,
//! so a reader that writes to a received buffer is ended by a signal.

mod backend;
mod block_address;
mod block_ledger;
mod block_segment;
mod client;
mod hold_sweeper;
mod policy;
mod protocol;
mod provider;
mod provider_error;
mod storage;

pub use backend::PoolBackend;
pub use client::PoolShmClient;
pub use policy::PoolPolicy;
pub use protocol::protocol_id;
pub use provider::PoolProvider;
pub use provider_error::ProviderError;
pub use storage::{client_storage, join_process};
