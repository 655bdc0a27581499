//! Transfers between hosts by RDMA verbs: one-sided operations on buffers, and messages from any
//! memory.
//!
//! # One-sided operations
//!
//! A [`Fabric`] connects the hosts of a job for one buffer. The buffer has the same address on
//! every host, so an operation needs only the region and the host:
//!
//! ```no_run
//! # use hostbuf::{HostBuffer, job::Solo};
//! # use hostbuf_rdma::{Fabric, FabricOptions, HostIndex, Signal};
//! # use std::time::Duration;
//! # let (world, buffer) = (Solo, HostBuffer::attach()?);
//! // SAFETY: no references into the buffer exist while it is written.
//! let fabric = unsafe { Fabric::connect(&world, &buffer, FabricOptions::default())? };
//! if fabric.host() == HostIndex(0) {
//!     // Writes the first 4096 bytes to the same place on host 1, and increments signal 0 there.
//!     fabric.put_signal(0..4096, HostIndex(1), Signal(0))?.wait()?;
//! } else {
//!     assert!(fabric.wait_signal(Signal(0), 1, Duration::from_secs(10))?);
//! }
//! # Ok::<(), hostbuf::Error>(())
//! ```
//!
//! Processes that have neither MPI nor a launcher connect by a [`Bootstrap`], for example over TCP:
//! [`Fabric::connect_with`].
//!
//! ## Order and visibility
//!
//! - Puts of one process to one host are performed there in the order in which they were begun. A
//!   get or a `fetch_add` may see the data of later puts.
//! - When [`Pending::wait`] returns from a put, its bytes have reached the device of the host, or
//!   its memory. A *processor* there is guaranteed to see them after the signal of a
//!   [`put_signal`](Fabric::put_signal) that the same process began at the same time or later. Do
//!   not poll the data itself.
//! - [`put_many`](Fabric::put_many) performs puts in their order, as one operation.
//! - [`flush_local`](Fabric::flush_local) waits until all operations are complete on this side.
//!   [`flush`](Fabric::flush) also waits until their data is in the memory of the other host.
//!   Neither notifies the other host.
//! - [`fetch_add`](Fabric::fetch_add) is atomic with respect to other `fetch_add` operations
//!   through the same device, but not to processors.
//!
//! # Messages
//!
//! A [`Channel`] sends messages from any memory of the process to another rank. The
//! [cache](hostbuf_register::RegistrationCache) registers that memory once.
//!
//! ```no_run
//! # use hostbuf::job::Collective;
//! # use hostbuf_rdma::{Channel, ChannelOptions, PeerId, Tag};
//! # fn exchange(world: &dyn Collective) -> hostbuf::Result<()> {
//! let right = PeerId((world.rank() + 1) % world.size());
//! let left = PeerId((world.rank() + world.size() - 1) % world.size());
//! // For more than two ranks; both ends of a channel have the same tag.
//! let wanted = [(right, Tag(0)), (left, Tag(0))];
//! let channels = Channel::connect(world, &wanted, ChannelOptions::default())?;
//! let (mut halo, edge) = (vec![0u8; 1 << 20], vec![1u8; 1 << 20]);
//! for _step in 0..1000 {
//!     let sending = channels[0].begin_send(&edge)?;
//!     channels[1].receive(&mut halo)?;
//!     sending.wait()?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Reads
//!
//! A [`ReadConnection`] connects two processes that exchange their addresses by a protocol of their
//! own, such as a mirror of pool blocks. Each of them reads memory of the other one directly.
//!
//! # Resources
//!
//! The first rank of each host does the I/O of a fabric. Each rank does the I/O of its own
//! channels. Each of them has one datagram queue pair for connect messages, one shared receive
//! queue for the notifications of all peers, and one progress thread. The first operation on a peer
//! makes a connection: one queue pair to each peer that this process writes to, and one for each
//! peer that writes to it. Only the table of addresses grows with the size of the job.
//!
//! Waiting threads sleep until the device reports an event. [`FabricOptions::busy_poll`] makes a
//! thread that waits for its own operations poll instead; waiting for signals and messages always
//! sleeps.
//!
//! # Not tested
//!
//! All of this was tested with a device in software (SoftRoCE, RoCE v2) between two virtual
//! machines, with up to four hosts, and with channels between ranks of one host. InfiniBand's own
//! addresses (LIDs, partition keys), several ports at a time, on-demand paging, GPU memory
//! (dma-buf) and relaxed ordering are neither tested nor implemented.
//!
//! # Modules
//!
//! Imports run one way, from the last to the first: `verbs` (objects of libibverbs), `connect`
//! (connections, and operations on them), `one_sided` (the fabric), `messages` (channels) and
//! `reads` beside each other, and `replicate`.

mod connect;
#[cfg(fuzzing)]
pub mod fuzzing;
mod limits;
mod messages;
mod one_sided;
mod options;
mod peer;
mod reads;
mod replicate;
mod sync;
mod verbs;

pub use connect::bootstrap::Bootstrap;
pub use connect::bootstrap_error::{BootstrapError, RecordContent};
pub use connect::pending::Pending;
pub use connect::tcp_bootstrap::TcpBootstrap;
pub use hostbuf::job::HostIndex;
pub use messages::channel::{Channel, Sending};
pub use messages::channel_options::ChannelOptions;
pub use messages::tag::Tag;
pub use one_sided::fabric::Fabric;
pub use one_sided::offset::Offset;
pub use one_sided::signal::{SIGNALS, Signal};
pub use options::FabricOptions;
pub use peer::PeerId;
pub use reads::read_address::ReadAddress;
pub use reads::read_connection::ReadConnection;
pub use reads::read_device::ReadDevice;
pub use reads::read_error::ReadError;

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
