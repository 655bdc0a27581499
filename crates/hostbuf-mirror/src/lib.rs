//! Copies of pool blocks on another host.
//!
//! A [`MirrorReceiver`] on one host listens at an address. A [`MirrorSender`] on another host
//! connects to it, sends blocks of its pool, and returns the tokens of the copies, which are valid
//! in the pool of the receiver's host:
//!
//! ```
//! use std::time::{Duration, Instant};
//! use hostbuf_mirror::{MirrorReceiver, MirrorReceiverOptions, MirrorSender, MirrorSenderOptions};
//! use hostbuf_pool::{ArrayLayout, ElementType, Pool, PoolMode, PoolOptions, ProducerOptions};
//!
//! // On one host.
//! let there = Pool::connect(PoolOptions::new("mirror").mode(PoolMode::Private))?;
//! let receiver = MirrorReceiver::listen(&there, "127.0.0.1:0", MirrorReceiverOptions::new())?;
//!
//! // On the other host.
//! let here = Pool::connect(PoolOptions::new("camera").mode(PoolMode::Private))?;
//! let sender = MirrorSender::connect(receiver.address(), MirrorSenderOptions::new())?;
//! let mut block = here.producer(&ProducerOptions::new(4096, 4))?.take()?;
//! block.as_mut_slice()[..5].copy_from_slice(b"frame");
//! let token = block.publish(ArrayLayout::contiguous(ElementType::UInt8, &[5])?)?;
//! let copy = sender.send(&here, &token, Instant::now() + Duration::from_secs(10))?;
//!
//! // Any transport passes the token on to the readers of the first host.
//! assert_eq!(there.acquire(&copy)?.as_slice(), b"frame");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The peers do not authenticate each other, and nothing is encrypted: the network must be trusted.

mod error;
mod keepalive;
mod readiness;
mod receiver;
mod refusal;
#[cfg(any(feature = "rdma", test))]
mod registration_retry;
mod sender;
mod time_limit;
mod wire;

pub use error::MirrorError;
pub use receiver::{MirrorReceiver, MirrorReceiverOptions, ReceiverCounters};
pub use refusal::MirrorRefusal;
pub use sender::{MirrorSender, MirrorSenderOptions, PendingMirror, SenderCounters};
