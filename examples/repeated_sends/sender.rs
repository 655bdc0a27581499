//! The interface of the devices that this example sends with.

use std::error::Error;
use std::sync::Arc;

use hostbuf::register::Registrar;

/// A result with any error.
pub type Outcome<T> = Result<T, Box<dyn Error>>;

/// A transport that sends bytes from registered memory.
pub trait Sender {
    /// The registrar of the memory that it sends from.
    type Registrar: Registrar;

    /// Returns the registrar.
    fn registrar(&self) -> Arc<Self::Registrar>;

    /// Sends the bytes of `from` to place `index` of the other side. The memory may be used again
    /// after [`finish`](Sender::finish).
    fn send(
        &mut self,
        index: usize,
        from: &[u8],
        handle: &<Self::Registrar as Registrar>::Handle,
    ) -> Outcome<()>;

    /// Waits until all sent data has arrived.
    fn finish(&mut self) -> Outcome<()>;

    /// Returns the `bytes` bytes that have arrived at place `index`.
    fn arrived(&mut self, index: usize, bytes: usize) -> Outcome<Vec<u8>>;
}
