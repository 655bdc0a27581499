//! The order in which requests that wait for leases are served.

/// The largest number of waiting requests that are served in order.
const ORDERED_WAITERS: usize = 4096;

/// The requests that wait for leases, in order of arrival; unordered beyond the first few thousand.
pub(super) struct WaitQueue {
    waiting: Vec<u64>,
    tickets: u64,
}

impl WaitQueue {
    /// Makes an empty queue, which never allocates afterwards.
    pub(super) fn new() -> WaitQueue {
        WaitQueue { waiting: Vec::with_capacity(ORDERED_WAITERS), tickets: 0 }
    }

    /// Adds a request at the end, and returns its ticket. Returns `None` if there is no room, and
    /// so no order.
    #[inline]
    pub(super) fn join(&mut self) -> Option<u64> {
        if self.waiting.len() == ORDERED_WAITERS {
            return None;
        }
        let ticket = self.tickets;
        self.waiting.push(ticket);
        self.tickets += 1;
        Some(ticket)
    }

    /// Removes a request.
    #[inline]
    pub(super) fn leave(&mut self, ticket: u64) {
        self.waiting.retain(|&other| other != ticket);
    }

    /// Returns whether the request with `ticket` is the first.
    #[inline]
    pub(super) fn is_first(&self, ticket: u64) -> bool {
        self.waiting.first() == Some(&ticket)
    }

    /// Returns whether no request waits.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the number of waiting requests.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}
