//! The options of connections.

use std::time::Duration;

use hostbuf::error::{Error, Result};

/// Options of the connections between hosts. The defaults suit most networks.
///
/// ```
/// use hostbuf_rdma::FabricOptions;
///
/// let options = FabricOptions::default().device("mlx5_0").busy_poll();
/// assert_eq!(options.device.as_deref(), Some("mlx5_0"));
/// assert!(options.busy_poll);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FabricOptions {
    /// The name of the device, for example `mlx5_0`. By default the first device with an active
    /// port, on the NUMA node of this process if there is one.
    pub device: Option<String>,
    /// The index of the port's address in its GID table. By default RoCE v2 over IPv4 if the port
    /// has it.
    pub gid_index: Option<u8>,
    /// The maximum transfer unit (MTU): 256, 512, 1024, 2048 or 4096 bytes, and at most that of the
    /// port, which is the default. If the two sides of a connection differ, the smaller one
    /// applies.
    pub mtu: Option<u16>,
    /// The time limit for making a connection, with all repetitions. An operation also fails if it
    /// waits for room in the send queue and no request completes for as long.
    pub connect_timeout: Duration,
    /// The time that the device waits for an acknowledgement before it repeats a packet, from 1 ms
    /// to 60 s. It is rounded up to a value that devices support, 4.096 µs times a power of two.
    pub ack_timeout: Duration,
    /// The number of repetitions before an operation fails, 0 to 6. (Devices also accept 7, which
    /// SoftRoCE takes as no limit.)
    pub retries: u8,
    /// The maximum number of operations to one host in progress. Posting waits while there are as
    /// many.
    pub depth: u32,
    /// True if waits busy-poll for completions: lower latency at the cost of one core. A wait for a
    /// signal or a message sleeps in any case.
    pub busy_poll: bool,
}

impl Default for FabricOptions {
    fn default() -> FabricOptions {
        FabricOptions {
            device: None,
            gid_index: None,
            mtu: None,
            connect_timeout: Duration::from_secs(20),
            ack_timeout: Duration::from_millis(250),
            retries: 6,
            depth: 128,
            busy_poll: false,
        }
    }
}

impl FabricOptions {
    /// Selects a device by name. See [`device`](FabricOptions#structfield.device).
    #[must_use]
    pub fn device(mut self, name: impl Into<String>) -> FabricOptions {
        self.device = Some(name.into());
        self
    }

    /// Selects an address of the port. See [`gid_index`](FabricOptions#structfield.gid_index).
    #[must_use]
    pub fn gid_index(mut self, index: u8) -> FabricOptions {
        self.gid_index = Some(index);
        self
    }

    /// Limits the maximum transfer unit. See [`mtu`](FabricOptions#structfield.mtu).
    #[must_use]
    pub fn mtu(mut self, bytes: u16) -> FabricOptions {
        self.mtu = Some(bytes);
        self
    }

    /// Limits the time for making a connection. See
    /// [`connect_timeout`](FabricOptions#structfield.connect_timeout).
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> FabricOptions {
        self.connect_timeout = timeout;
        self
    }

    /// Sets the time before a packet is repeated. See
    /// [`ack_timeout`](FabricOptions#structfield.ack_timeout).
    #[must_use]
    pub fn ack_timeout(mut self, timeout: Duration) -> FabricOptions {
        self.ack_timeout = timeout;
        self
    }

    /// Sets the number of repetitions. See [`retries`](FabricOptions#structfield.retries).
    #[must_use]
    pub fn retries(mut self, retries: u8) -> FabricOptions {
        self.retries = retries;
        self
    }

    /// Limits the operations in progress. See [`depth`](FabricOptions#structfield.depth).
    #[must_use]
    pub fn depth(mut self, operations: u32) -> FabricOptions {
        self.depth = operations;
        self
    }

    /// Selects busy polling for completions. See [`busy_poll`](FabricOptions#structfield.busy_poll).
    #[must_use]
    pub fn busy_poll(mut self) -> FabricOptions {
        self.busy_poll = true;
        self
    }

    /// Checks all values.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a value out of its range.
    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |option: &str, value: String, expected: &str| {
            Err(Error::invalid(format!("invalid option {option} = {value}: expected {expected}")))
        };
        if self.retries > 6 {
            return invalid("retries", self.retries.to_string(), "0 to 6");
        }
        if self.depth == 0 || self.depth > 4096 {
            return invalid("depth", self.depth.to_string(), "1 to 4096");
        }
        if self.ack_timeout < Duration::from_millis(1) || self.ack_timeout > Duration::from_secs(60) {
            return invalid("ack_timeout", format!("{:?}", self.ack_timeout), "1 ms to 60 s");
        }
        if let Some(mtu) = self.mtu.filter(|mtu| !mtu.is_power_of_two() || !(256..=4096).contains(mtu)) {
            return invalid("mtu", mtu.to_string(), "256, 512, 1024, 2048 or 4096");
        }
        if self.connect_timeout.is_zero() || self.connect_timeout > Duration::from_secs(86_400) {
            return invalid(
                "connect_timeout",
                format!("{:?}", self.connect_timeout),
                "more than 0 and at most one day",
            );
        }
        Ok(())
    }

    /// Returns the acknowledgement timeout in the encoding of verbs: the exponent of two by which
    /// 4.096 µs are multiplied.
    pub(crate) fn ack_timeout_exponent(&self) -> u8 {
        let steps = self.ack_timeout.as_nanos().div_ceil(4096).max(1);
        steps.next_power_of_two().trailing_zeros().min(31) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ack_timeout_is_rounded_up() {
        let exponent =
            |ack_timeout| FabricOptions { ack_timeout, ..FabricOptions::default() }.ack_timeout_exponent();
        assert_eq!(exponent(Duration::from_nanos(4096)), 0);
        assert_eq!(exponent(Duration::from_micros(5)), 1);
        assert_eq!(exponent(Duration::from_millis(250)), 16);
        assert_eq!(exponent(Duration::from_secs(60)), 24);
    }

    #[test]
    fn values_out_of_range_are_errors() {
        assert!(FabricOptions::default().check().is_ok());
        for options in [
            FabricOptions { retries: 7, ..FabricOptions::default() },
            FabricOptions { depth: 0, ..FabricOptions::default() },
            FabricOptions { ack_timeout: Duration::ZERO, ..FabricOptions::default() },
            FabricOptions { connect_timeout: Duration::ZERO, ..FabricOptions::default() },
            FabricOptions { connect_timeout: Duration::MAX, ..FabricOptions::default() },
            FabricOptions { mtu: Some(1500), ..FabricOptions::default() },
            FabricOptions { mtu: Some(128), ..FabricOptions::default() },
        ] {
            assert!(options.check().is_err(), "{options:?}");
        }
    }
}
