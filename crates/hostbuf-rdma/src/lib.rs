//! Sends from registered memory over RDMA verbs.
//!
//! Since the buffer stands at the same address on every host, a peer's address is one's own: to [put](Fabric::put) a region
//! to a host needs nothing but the region and the host.
//!
//! ```no_run
//! # use hostbuf::{HostBuffer, job::Solo, rdma::{Fabric, FabricOptions}};
//! # use std::time::Duration;
//! # let (world, buffer) = (Solo, HostBuffer::attach()?);
//! // SAFETY: nobody has references into the buffer while it is written.
//! let fabric = unsafe { Fabric::connect(&world, &buffer, FabricOptions::default())? };
//! if fabric.host() == 0 {
//!     fabric.put_signal(0..4096, 1, 0)?.wait()?;                 // the same bytes of the same buffer, there
//! } else {
//!     assert!(fabric.wait_signal(0, 1, Duration::from_secs(10))?); // and now they are here
//! }
//! # Ok::<(), hostbuf::Error>(())
//! ```
//!
//! # What is ordered, and when data is there
//!
//! - Operations of one process on one host are carried out there in the order in which they were begun, as long as they write.
//!   A get, or an addition, may see what later puts write.
//! - When [`Pending::wait`] comes back from a put, its bytes have arrived in the memory of the host's device or beyond. A
//!   *processor* there sees them for sure when it has seen the signal of a [`put_signal`](Fabric::put_signal) that was begun
//!   at the same time or later by the same process. Never look at the data itself to find out whether it has come.
//! - [`put_many`](Fabric::put_many) is as many puts in that order, which are begun together and end together.
//! - [`flush_local`](Fabric::flush_local) waits until all that was begun is over on this side; [`flush`](Fabric::flush) until it
//!   is in the other side's memory besides. Neither tells the other side anything.
//! - [`fetch_add`](Fabric::fetch_add) is atomic among these operations through one device, and not with what processors do.
//!
//! Waiting sleeps until the device has an event. With [`FabricOptions::busy_poll`] whoever waits for the end of his own operations looks again
//! and again instead; for signals and messages of others everybody sleeps.
//!
//! # Who owns what
//!
//! Of a fabric the first rank of each host does the I/O. Of [channels](Channel) every rank that has one does its own. Either has
//! one datagram queue pair, from which connections are asked for, and one receive queue for all that others tell; to each
//! other process that it writes to it has one queue pair, and one for each that writes to it, made when they are first wanted.
//! So nothing but the table of addresses grows with the size of the job.
//!
//! # Messages
//!
//! A [`Channel`] sends from buffers anywhere to another rank, again and again: it is set up once, and the buffers are
//! registered once, by the [cache](crate::register::RegistrationCache).
//!
//! ```no_run
//! # use hostbuf::{job::Collective, rdma::{Channel, ChannelOptions}};
//! # fn exchange(world: &dyn Collective) -> hostbuf::Result<()> {
//! let right = (world.rank() + 1) % world.size();
//! let left = (world.rank() + world.size() - 1) % world.size();
//! // With more than two ranks; both ends of a channel have the same tag.
//! let channels = Channel::connect(world, &[(right, 0), (left, 0)], ChannelOptions::default())?;
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
//! # What was not tried
//!
//! All of it was tried with the device in software (SoftRoCE, RoCE v2) between two virtual machines, with up to four hosts, and
//! with channels between ranks of one host too. InfiniBand's own addresses (LIDs, partition keys), several ports at once, memory
//! that is registered on demand, GPU memory (dma-buf) and relaxed ordering were not, and are not built.

mod connect;
mod limits;
mod messages;
mod one_sided;
mod options;
mod replicate;
mod sync;
mod verbs;

pub use connect::pending::Pending;
pub use messages::channel::{Channel, Sending};
pub use messages::channel_options::ChannelOptions;
pub use one_sided::fabric::Fabric;
pub use one_sided::signals::SIGNALS;
pub use options::FabricOptions;
