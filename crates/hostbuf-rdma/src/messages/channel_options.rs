//! The options of channels.

use crate::messages::ring::RingLayout;
use crate::options::FabricOptions;
use hostbuf::error::{Error, Result};

const MAX_EAGER: usize = 1 << 20;
const MAX_SLOTS: usize = 4096;

/// Options of channels. All ranks have equal values, except for `connection`.
///
/// ```
/// use hostbuf_rdma::{ChannelOptions, FabricOptions};
///
/// let connection = FabricOptions::default().depth(64);
/// let options = ChannelOptions::default().eager(4096).slots(32).connection(connection);
/// assert_eq!((options.eager, options.slots, options.connection.depth), (4096, 32, 64));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelOptions {
    /// The device and the options of its connections.
    pub connection: FabricOptions,
    /// The maximum number of bytes of an eager message, which is copied and sent at once. A longer
    /// message uses rendezvous: the cache registers its memory, and the receiver reads it from
    /// there. At most 1 MiB.
    pub eager: usize,
    /// The maximum number of messages of a channel that are not acknowledged, in each direction,
    /// from 1 to 4096. A sender waits while there are as many. The receiver acknowledges in batches
    /// of half the slots, so the effective limit may be little more than half. Each side pins a
    /// slot of the size of an eager message for each message and direction: 258 KiB per channel
    /// with the defaults.
    pub slots: usize,
}

impl Default for ChannelOptions {
    fn default() -> ChannelOptions {
        ChannelOptions { connection: FabricOptions::default(), eager: 8192, slots: 16 }
    }
}

impl ChannelOptions {
    /// Sets the options of the connections. See
    /// [`connection`](ChannelOptions#structfield.connection).
    #[must_use]
    pub fn connection(mut self, options: FabricOptions) -> ChannelOptions {
        self.connection = options;
        self
    }

    /// Limits the length of an eager message. See [`eager`](ChannelOptions#structfield.eager).
    #[must_use]
    pub fn eager(mut self, bytes: usize) -> ChannelOptions {
        self.eager = bytes;
        self
    }

    /// Sets the number of slots. See [`slots`](ChannelOptions#structfield.slots).
    #[must_use]
    pub fn slots(mut self, slots: usize) -> ChannelOptions {
        self.slots = slots;
        self
    }

    pub(crate) fn layout(&self) -> RingLayout {
        RingLayout { eager: self.eager, slots: self.slots }
    }

    /// Checks the values that concern channels.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a value out of its range.
    pub(crate) fn check(&self) -> Result<()> {
        let (eager, slots) = (self.eager, self.slots);
        if eager > MAX_EAGER || slots == 0 || slots > MAX_SLOTS {
            return Err(Error::invalid(format!(
                "invalid channel options eager = {eager}, slots = {slots}: expected eager <= {MAX_EAGER} and 1 <= slots <= {MAX_SLOTS}"
            )));
        }
        Ok(())
    }
}
