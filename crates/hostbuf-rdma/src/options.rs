//! What can be chosen of a fabric.

use std::time::Duration;

use crate::error::{Error, Result};

/// How hosts are connected. The defaults suit; each value says its unit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The device, by its name (`mlx5_0`); without it the first that is up, on the NUMA node that this runs on if
    /// there is such a one.
    pub device: Option<String>,
    /// Which of the port's addresses (GIDs), by its index; without it RoCE v2 over IPv4, if there is such a one.
    pub gid: Option<u8>,
    /// The most bytes of one packet (MTU): 256, 512, 1024, 2048 or 4096, and no more than the port has; without it, as many as the
    /// port takes. Of two sides that differ the smaller one is used.
    pub mtu: Option<u16>,
    /// How long making a connection may take, with all that is asked again; and how long whoever waits for room in the queue
    /// waits while nothing that is in it comes to its end.
    pub connect: Duration,
    /// How long the device waits for an answer before it asks again: at least 1 ms, at most a minute; it is rounded up to the
    /// next that devices know, which go in powers of two.
    pub answer: Duration,
    /// How often it asks again before the operation fails, 0 to 6. (7, which devices also take, is for ever to SoftRoCE.)
    pub retries: u8,
    /// The most operations to one host that are under way at a time; whoever posts more waits.
    pub depth: u32,
    /// Waits for the end of operations by looking again and again: less delay, and a core for it. Who waits for a signal or a message
    /// sleeps all the same.
    pub busy: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            device: None,
            gid: None,
            mtu: None,
            connect: Duration::from_secs(20),
            answer: Duration::from_millis(250),
            retries: 6,
            depth: 128,
            busy: false,
        }
    }
}

impl Options {
    pub(crate) fn check(&self) -> Result<()> {
        let refuse = |what: &str| Err(Error::invalid(format!("the fabric's option {what}")));
        if self.retries > 6 {
            return refuse("retries is 0 to 6");
        }
        if self.depth == 0 || self.depth > 4096 {
            return refuse("depth is 1 to 4096");
        }
        if self.answer < Duration::from_millis(1) || self.answer > Duration::from_secs(60) {
            return refuse("answer is 1 ms to 60 s");
        }
        if self.mtu.is_some_and(|mtu| !mtu.is_power_of_two() || !(256..=4096).contains(&mtu)) {
            return refuse("mtu is 256, 512, 1024, 2048 or 4096");
        }
        if self.connect.is_zero() || self.connect > Duration::from_secs(86_400) {
            return refuse("connect is longer than nothing, and a day at most");
        }
        Ok(())
    }

    /// As devices take it: 4.096 µs times two to the power of this.
    pub(crate) fn answer_exponent(&self) -> u8 {
        let steps = self.answer.as_nanos().div_ceil(4096).max(1);
        steps.next_power_of_two().trailing_zeros().min(31) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up() {
        let exponent = |answer| Options { answer, ..Options::default() }.answer_exponent();
        assert_eq!(exponent(Duration::from_nanos(4096)), 0);
        assert_eq!(exponent(Duration::from_micros(5)), 1);
        assert_eq!(exponent(Duration::from_millis(250)), 16);
        assert_eq!(exponent(Duration::from_secs(60)), 24);
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(Options::default().check().is_ok());
        for options in [
            Options { retries: 7, ..Options::default() },
            Options { depth: 0, ..Options::default() },
            Options { answer: Duration::ZERO, ..Options::default() },
            Options { connect: Duration::ZERO, ..Options::default() },
            Options { connect: Duration::MAX, ..Options::default() },
            Options { mtu: Some(1500), ..Options::default() },
            Options { mtu: Some(128), ..Options::default() },
        ] {
            assert!(options.check().is_err(), "{options:?}");
        }
    }
}
