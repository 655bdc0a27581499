//! Memory blocks shared between the processes of a host.

mod pool_id;
mod token;

pub use pool_id::PoolId;
pub use token::{InvalidToken, Token};
