//! Random numbers and instants, which a seed repeats.

use std::time::Duration;

/// A sequence of random numbers (xorshift64*), which a seed repeats.
#[derive(Debug)]
pub struct RandomInstants(u64);

impl RandomInstants {
    pub fn new(seed: u64) -> RandomInstants {
        RandomInstants(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns a number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        (self.number() >> 33) % end
    }

    /// Returns a time below `end`.
    pub fn time(&mut self, end: Duration) -> Duration {
        Duration::from_nanos(self.below(end.as_nanos() as u64))
    }
}
