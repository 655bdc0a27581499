//! Memory blocks shared between the processes of a host.

mod header;
mod pool_id;
mod token;

pub use header::{ArrayLayout, BlockHeader, ElementType, InvalidHeader, InvalidLayout};
pub use pool_id::PoolId;
pub use token::{InvalidToken, Token};
