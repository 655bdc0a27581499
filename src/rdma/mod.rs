//! Sends from registered memory over RDMA verbs.
//!
//! Since the buffer stands at the same address on every host, a peer's address is one's own: to [put](Fabric::put) a region
//! to a host needs nothing but the region and the host.
//!
//! # What is ordered, and when data is there
//!
//! - Operations of one process on one host are carried out there in the order in which they were begun, as long as they write.
//!   A get, or an addition, may see what later puts write.
//! - When [`Pending::wait`] comes back from a put, its bytes have arrived in the memory of the host's device or beyond. A
//!   *processor* there sees them for sure when it has seen the signal of a [`put_signal`](Fabric::put_signal) that was begun
//!   at the same time or later by the same process. Never look at the data itself to find out whether it has come.
//! - [`flush`](Fabric::flush) waits until all that was begun is over on this side; it tells the other side nothing.
//! - [`fetch_add`](Fabric::fetch_add) is atomic among these operations through one device, and not with what processors do.
//!
//! Waiting sleeps until the device has an event, unless [`Options::busy`] is set.
//!
//! ```no_run
//! # use hostbuf::{HostBuffer, job::Solo, rdma::{Fabric, Options}};
//! # use std::time::Duration;
//! # let (world, buffer) = (Solo, HostBuffer::attach()?);
//! let fabric = Fabric::connect(&world, &buffer, Options::default())?;
//! if fabric.host() == 0 {
//!     fabric.put_signal(0..4096, 1, 0)?.wait()?;                 // the same bytes of the same buffer, there
//! } else {
//!     assert!(fabric.wait_signal(0, 1, Duration::from_secs(10))?); // and now they are here
//! }
//! # Ok::<(), hostbuf::Error>(())
//! ```

mod completions;
mod fabric;
mod flights;
mod letter;
mod links;
mod mail;
mod operations;
mod options;
mod pair;
mod port;
mod receives;

pub use fabric::{Fabric, SIGNALS};
pub use operations::Pending;
pub use options::Options;
