//! The bytes of a pool: who has how many, and how many are free.

use std::collections::BTreeMap;

/// The bytes of all segments, counted before they are made and until no process can have them
/// mapped.
#[derive(Debug)]
pub(super) struct Accounts {
    limit: u64,
    per_client: u64,
    total: u64,
    /// The bytes of each client that has made segments.
    clients: BTreeMap<u64, u64>,
}

/// The limit that a request would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExceededLimit {
    /// The limit of the pool, with this number of free bytes.
    Pool(u64),
    /// The limit of one client, with this number of free bytes.
    Client(u64),
}

impl Accounts {
    pub(super) fn new(limit: u64, per_client: u64) -> Accounts {
        Accounts { limit, per_client, total: 0, clients: BTreeMap::new() }
    }

    /// Returns the largest sum of all segments.
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the largest sum of one client's segments.
    pub(super) fn per_client(&self) -> u64 {
        self.per_client
    }

    /// Returns the sum of all segments.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Returns the sum of the segments that a client has made.
    pub(super) fn of_client(&self, client: u64) -> u64 {
        self.clients.get(&client).copied().unwrap_or(0)
    }

    /// Counts `bytes` of a client.
    ///
    /// # Errors
    /// [`ExceededLimit`]; nothing is counted then.
    pub(super) fn charge(&mut self, client: u64, bytes: u64) -> Result<(), ExceededLimit> {
        let own = self.per_client.saturating_sub(self.of_client(client));
        if bytes > own {
            return Err(ExceededLimit::Client(own));
        }
        let free = self.limit.saturating_sub(self.total);
        if bytes > free {
            return Err(ExceededLimit::Pool(free));
        }
        self.count(client, bytes);
        Ok(())
    }

    /// Returns whether the sum of all segments and `bytes` is a number. The sizes of sparse files
    /// and of memory that other processes name can be anything.
    pub(super) fn can_count(&self, bytes: u64) -> bool {
        self.total.checked_add(bytes).is_some()
    }

    /// Counts `bytes` that exist already, whatever the limits are.
    ///
    /// # Panics
    /// Unless they [can be counted](Accounts::can_count).
    pub(super) fn count(&mut self, client: u64, bytes: u64) {
        self.total = self.total.checked_add(bytes).expect("the caller has checked the sum");
        // The sum of one client is not larger than that of all.
        *self.clients.entry(client).or_default() += bytes;
    }

    /// Returns `bytes` of a client.
    pub(super) fn refund(&mut self, client: u64, bytes: u64) {
        self.total -= bytes;
        let own = self.clients.get_mut(&client).expect("its bytes were counted");
        *own -= bytes;
        if *own == 0 {
            self.clients.remove(&client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_limits_are_exact() {
        let mut accounts = Accounts::new(100, 60);
        assert_eq!(accounts.charge(1, 61), Err(ExceededLimit::Client(60)));
        accounts.charge(1, 60).unwrap();
        assert_eq!(accounts.charge(1, 1), Err(ExceededLimit::Client(0)));
        assert_eq!(accounts.charge(2, 41), Err(ExceededLimit::Pool(40)));
        accounts.charge(2, 40).unwrap();
        assert_eq!(accounts.charge(3, 1), Err(ExceededLimit::Pool(0)));
        accounts.refund(1, 60);
        assert_eq!((accounts.total(), accounts.of_client(1)), (40, 0));
        accounts.charge(3, 60).unwrap();
        // Bytes that an earlier broker has granted are counted, also beyond a smaller limit.
        accounts.count(4, 500);
        assert_eq!(accounts.charge(2, 1), Err(ExceededLimit::Pool(0)));
        assert_eq!(accounts.charge(5, u64::MAX), Err(ExceededLimit::Client(60)));
    }

    #[test]
    fn sums_are_exact_or_refused() {
        let mut accounts = Accounts::new(100, 60);
        accounts.charge(1, 10).unwrap();
        assert!(accounts.can_count(u64::MAX - 10) && !accounts.can_count(u64::MAX - 9));
        accounts.count(2, u64::MAX - 10);
        assert_eq!(accounts.charge(3, 1), Err(ExceededLimit::Pool(0)));
        accounts.refund(2, u64::MAX - 10);
        assert_eq!((accounts.total(), accounts.of_client(1)), (10, 10));
    }
}
