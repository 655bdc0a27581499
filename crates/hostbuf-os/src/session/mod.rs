//! Sessions between a process and a server on the same host: the client connects to an abstract
//! name and says hello, both sides check the user of the other, and the server watches the client's
//! process.
//!
//! A server may serve processes that are no ranks: nothing here depends on the contents of a hello.

mod acceptor;
mod client;
mod session_error;
#[cfg(test)]
mod tests;

pub use acceptor::{AcceptedClient, Acceptor, DescriptorShortage};
pub use client::Session;
pub use session_error::SessionError;
