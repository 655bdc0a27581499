//! The eviction policy: queues and ghosts as in S3-FIFO (Yang and others, "FIFO queues are all you
//! need for cache eviction", SOSP 2023), with another rule for the admission to the main queue.
//!
//! New registrations pass through a small queue, which has a tenth of all, and at least one. A
//! registration that is used again there moves to the main queue. One that leaves the small queue
//! unused is recorded for a while as a ghost. A ghost that returns enters the main queue directly
//! while the main queue grows. Later it only replaces a member whose last check found no use, and
//! that has not been used since: each registration that leaves the small queue checks one member of
//! the main queue, in turn.
//!
//! So a working set that slightly exceeds the budget keeps most of its places, unlike with FIFO and
//! LRU; a scan passes through the small queue; and a new working set takes over in its third round.
//!
//! Uses are not reported to the policy, which reads them from the lease counts when it chooses.
//! Nothing here allocates after construction.

use super::cache_slot::CacheSlot;
use crate::span::{Access, Span};

/// The number of no slot.
const NONE: CacheSlot = CacheSlot::new(u32::MAX);
/// The number of ghosts in a set. There are four times as many places as slots, so a set is rarely
/// full of young ghosts.
const WAYS: usize = 8;

/// The queue that a slot is in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EvictionQueue {
    None,
    Small,
    Main,
}

/// A slot in its queue.
#[derive(Clone, Copy)]
struct PolicyEntry {
    queue: EvictionQueue,
    previous: CacheSlot,
    next: CacheSlot,
    bytes: usize,
    key: u64,
    /// True if it had been used at the last check.
    hot: bool,
    /// The number of its leases at the last check.
    seen: u32,
}

/// The ends of a queue, and its length.
#[derive(Default)]
struct QueueEnds {
    head: Option<CacheSlot>,
    tail: Option<CacheSlot>,
    count: usize,
    bytes: usize,
}

/// The eviction policy of a cache.
pub(super) struct EvictionPolicy {
    entries: Box<[PolicyEntry]>,
    small: QueueEnds,
    main: QueueEnds,
    /// The ghosts, in sets by key: the key, and the number of departures at that time.
    ghosts: Box<[[(u64, u64); WAYS]]>,
    departures: u64,
    /// The key of the ghost for which a member of the main queue was chosen.
    replacing: Option<u64>,
}

/// The limit of the budget that is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shortage {
    /// The number of registrations.
    Registrations,
    /// The number of bytes.
    Bytes,
}

/// Returns the number by which the policy recognises a registration that returns. It is never 0.
#[inline]
pub(super) fn key_of(span: Span, access: Access) -> u64 {
    let mix = |h: u64, v: u64| (h ^ v).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    mix(mix(mix(1, span.start() as u64), span.len() as u64), u64::from(access.bits())) | 1
}

impl EvictionPolicy {
    /// Makes the policy of an empty cache.
    pub(super) fn new(slots: usize) -> EvictionPolicy {
        let entry = PolicyEntry {
            queue: EvictionQueue::None,
            previous: NONE,
            next: NONE,
            bytes: 0,
            key: 0,
            hot: false,
            seen: 0,
        };
        EvictionPolicy {
            entries: vec![entry; slots].into(),
            small: QueueEnds::default(),
            main: QueueEnds::default(),
            ghosts: vec![[(0, 0); WAYS]; (4 * slots).next_power_of_two().max(WAYS) / WAYS].into(),
            departures: 0,
            replacing: None,
        }
    }

    /// Returns the number of the set of ghosts for a key.
    fn set_of(&self, key: u64) -> usize {
        // Any bits of a key but the lowest, which is always set.
        (key >> 32) as usize & (self.ghosts.len() - 1)
    }

    /// Returns whether a registration has left the small queue lately.
    fn is_ghost(&self, key: u64) -> bool {
        let young = 2 * (self.small.count + self.main.count) as u64;
        let mut set = self.ghosts[self.set_of(key)].iter();
        set.any(|&(ghost, when)| ghost == key && when > 0 && self.departures - when <= young)
    }

    /// Records a departure, in place of the same key or of the oldest ghost.
    fn record_departure(&mut self, key: u64) {
        self.departures += 1;
        let number = self.set_of(key);
        let set = &mut self.ghosts[number];
        let itself = set.iter().position(|ghost| ghost.0 == key);
        let oldest = (0..WAYS).min_by_key(|&way| set[way].1).unwrap_or(0);
        set[itself.unwrap_or(oldest)] = (key, self.departures);
    }

    /// Adds a registration that has been leased `taken` times so far.
    pub(super) fn add(&mut self, slot: CacheSlot, key: u64, bytes: usize, taken: u32) {
        let replaces = std::mem::take(&mut self.replacing) == Some(key);
        let entry = &mut self.entries[slot.index()];
        (entry.key, entry.bytes, entry.hot, entry.seen) = (key, bytes, true, taken);
        self.push(slot, if replaces { EvictionQueue::Main } else { EvictionQueue::Small });
    }

    /// Removes a registration that is not evicted.
    pub(super) fn remove(&mut self, slot: CacheSlot) {
        self.unlink(slot);
    }

    /// Chooses a registration that is not leased, to make room for `key`, and removes it. `count`
    /// returns the number of leases that a slot has had, and whether it is leased.
    pub(super) fn choose(
        &mut self,
        short: Shortage,
        key: u64,
        count: impl Fn(CacheSlot) -> (u32, bool),
    ) -> Option<CacheSlot> {
        let ghost = self.is_ghost(key);
        // As long as the small queue has more than its share, the main queue is growing.
        let growing = self.small.count > ((self.small.count + self.main.count) / 10).max(1);
        if ghost
            && !growing
            && let Some(slot) = self.take_cold(&count)
        {
            self.replacing = Some(key);
            return Some(slot);
        }
        // All members of the small queue may have been used, or may be leased.
        for _ in 0..self.small.count {
            let (small, all) = match short {
                Shortage::Registrations => (self.small.count, self.small.count + self.main.count),
                Shortage::Bytes => (self.small.bytes, self.small.bytes + self.main.bytes),
            };
            if small < (all / 10).max(1) {
                break;
            }
            let slot = self.small.head?;
            let (taken, leased) = count(slot);
            let used = self.check_use(slot, taken);
            self.unlink(slot);
            if leased || used {
                self.push(slot, if used { EvictionQueue::Main } else { EvictionQueue::Small });
            } else {
                self.leave_small_queue(slot, &count);
                self.replacing = (ghost && growing).then_some(key);
                return Some(slot);
            }
        }
        self.take_cold(&count)
            .or_else(|| self.take_unleased(EvictionQueue::Main, &count))
            .or_else(|| self.take_unleased(EvictionQueue::Small, &count))
    }

    /// Returns whether a slot has been used since the last check.
    fn check_use(&mut self, slot: CacheSlot, taken: u32) -> bool {
        let entry = &mut self.entries[slot.index()];
        let used = entry.seen != taken;
        entry.hot = used;
        entry.seen = taken;
        used
    }

    /// Makes a slot that leaves the small queue a ghost, and checks one member of the main queue,
    /// in turn.
    fn leave_small_queue(&mut self, slot: CacheSlot, count: &impl Fn(CacheSlot) -> (u32, bool)) {
        self.record_departure(self.entries[slot.index()].key);
        if let Some(member) = self.main.head {
            self.check_use(member, count(member).0);
            self.unlink(member);
            self.push(member, EvictionQueue::Main);
        }
    }

    /// Removes and returns a member of the main queue that is not leased, has not been used since
    /// the last check, and had not been used before that check.
    fn take_cold(&mut self, count: &impl Fn(CacheSlot) -> (u32, bool)) -> Option<CacheSlot> {
        // The oldest members come first. The number of checks is bounded, since every miss makes
        // them.
        const CHECKS: usize = 8;
        for _ in 0..CHECKS.min(self.main.count) {
            let slot = self.main.head?;
            let (taken, leased) = count(slot);
            let entry = &self.entries[slot.index()];
            let cold = !entry.hot && entry.seen == taken && !leased;
            self.unlink(slot);
            if cold {
                return Some(slot);
            }
            self.push(slot, EvictionQueue::Main);
        }
        None
    }

    /// Removes and returns the first member of a queue that is not leased.
    fn take_unleased(
        &mut self,
        queue: EvictionQueue,
        count: &impl Fn(CacheSlot) -> (u32, bool),
    ) -> Option<CacheSlot> {
        for _ in 0..self.ends(queue).count {
            let slot = self.ends(queue).head?;
            self.unlink(slot);
            if !count(slot).1 {
                return Some(slot);
            }
            self.push(slot, queue);
        }
        None
    }

    /// Returns the ends of a queue.
    fn ends(&mut self, queue: EvictionQueue) -> &mut QueueEnds {
        if queue == EvictionQueue::Small { &mut self.small } else { &mut self.main }
    }

    /// Appends a slot to a queue.
    fn push(&mut self, slot: CacheSlot, queue: EvictionQueue) {
        let bytes = self.entries[slot.index()].bytes;
        let ends = self.ends(queue);
        let last = ends.tail.replace(slot);
        ends.head.get_or_insert(slot);
        ends.count += 1;
        ends.bytes += bytes;
        let entry = &mut self.entries[slot.index()];
        (entry.queue, entry.previous, entry.next) = (queue, last.unwrap_or(NONE), NONE);
        if let Some(last) = last {
            self.entries[last.index()].next = slot;
        }
    }

    /// Removes a slot from its queue.
    fn unlink(&mut self, slot: CacheSlot) {
        let entry = self.entries[slot.index()];
        if entry.queue == EvictionQueue::None {
            return;
        }
        self.entries[slot.index()].queue = EvictionQueue::None;
        let named = |n: CacheSlot| (n != NONE).then_some(n);
        match named(entry.previous) {
            Some(previous) => self.entries[previous.index()].next = entry.next,
            None => self.ends(entry.queue).head = named(entry.next),
        }
        match named(entry.next) {
            Some(next) => self.entries[next.index()].previous = entry.previous,
            None => self.ends(entry.queue).tail = named(entry.previous),
        }
        let ends = self.ends(entry.queue);
        ends.count -= 1;
        ends.bytes -= entry.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// A cache of `capacity` registrations and bytes with nothing but the policy.
    struct Model {
        policy: EvictionPolicy,
        capacity: (usize, usize),
        here: HashMap<u64, (CacheSlot, usize)>,
        taken: Vec<u32>,
        free: Vec<CacheSlot>,
        used: usize,
        registered: usize,
    }

    impl Model {
        fn new(registrations: usize, bytes: usize) -> Model {
            Model {
                policy: EvictionPolicy::new(registrations),
                capacity: (registrations, bytes),
                here: HashMap::new(),
                taken: vec![0; registrations],
                free: (0..registrations).map(CacheSlot::from_index).collect(),
                used: 0,
                registered: 0,
            }
        }

        /// Requests `key`, and returns whether it hits.
        fn get(&mut self, key: u64, bytes: usize) -> bool {
            // The hash of the cache's keys.
            let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ bytes as u64;
            let hash = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) | 1;
            if let Some((slot, _)) = self.here.get(&hash) {
                self.taken[slot.index()] += 1;
                return true;
            }
            while self.free.is_empty() || self.used + bytes > self.capacity.1 {
                let short = if self.free.is_empty() { Shortage::Registrations } else { Shortage::Bytes };
                let slot = self.policy.choose(short, hash, |slot| (self.taken[slot.index()], false)).unwrap();
                let key = *self.here.iter().find(|(_, v)| v.0 == slot).unwrap().0;
                self.used -= self.here.remove(&key).unwrap().1;
                self.free.push(slot);
            }
            let slot = self.free.pop().unwrap();
            self.taken[slot.index()] += 1;
            self.policy.add(slot, hash, bytes, self.taken[slot.index()]);
            self.here.insert(hash, (slot, bytes));
            self.used += bytes;
            self.registered += bytes;
            false
        }

        fn rate(&mut self, keys: impl Iterator<Item = u64>) -> f64 {
            let (mut hits, mut all) = (0u32, 0u32);
            for key in keys {
                hits += u32::from(self.get(key, 1));
                all += 1;
            }
            f64::from(hits) / f64::from(all)
        }
    }

    fn cycle(n: u64, rounds: u64) -> impl Iterator<Item = u64> {
        (0..n * rounds).map(move |i| i % n + 1)
    }

    #[test]
    fn a_working_set_that_fits_stays() {
        for n in [1, 4, 16, 1024] {
            let mut model = Model::new(n, usize::MAX);
            model.rate(cycle(n as u64, 1));
            assert_eq!(model.rate(cycle(n as u64, 10)), 1.0, "{n}");
        }
    }

    #[test]
    fn a_working_set_that_exceeds_the_budget_by_one_still_hits() {
        for n in [16, 64, 1024] {
            let mut model = Model::new(n, usize::MAX);
            model.rate(cycle(n as u64 + 1, 20));
            let rate = model.rate(cycle(n as u64 + 1, 200));
            assert!(rate >= 0.8, "{n}: {rate}");
        }
    }

    #[test]
    fn a_scan_does_not_evict_hot_registrations() {
        for n in [16u64, 64, 1024] {
            let mut model = Model::new(n as usize, usize::MAX);
            let hot = n / 2;
            model.rate(cycle(hot, 5));
            let (mut hits, mut all) = (0, 0);
            for i in 0..200 * hot {
                hits += u32::from(model.get(i % hot + 1, 1));
                all += 1;
                model.get(1_000_000 + i, 1);
            }
            let rate = f64::from(hits) / f64::from(all);
            assert!(rate >= 0.95, "{n}: {rate}");
        }
    }

    #[test]
    fn a_new_working_set_fits_within_four_passes() {
        for n in [4u64, 16, 64, 1024] {
            let mut model = Model::new(n as usize, usize::MAX);
            model.rate(cycle(n, 20));
            let shifted = || cycle(n, 1).map(|k| k + 1_000_000);
            for _ in 0..4 {
                model.rate(shifted());
            }
            assert_eq!(model.rate(shifted()), 1.0, "{n}");
        }
    }

    #[test]
    fn used_or_leased_members_are_not_evicted_from_the_small_queue() {
        let mut policy = EvictionPolicy::new(4);
        (0..4).for_each(|slot| policy.add(CacheSlot::new(slot), u64::from(slot) + 1, 1, 1));
        // Slot 0 has been leased again since, and slot 1 is leased.
        let chosen = policy.choose(Shortage::Registrations, 9, |slot| {
            (if slot.index() == 0 { 2 } else { 1 }, slot.index() == 1)
        });
        assert_eq!(chosen, Some(CacheSlot::new(2)));
        assert!(
            policy.entries[0].queue == EvictionQueue::Main && policy.entries[1].queue == EvictionQueue::Small
        );
    }

    #[test]
    fn while_the_main_queue_grows_only_ghosts_enter_it_directly() {
        let mut model = Model::new(10, usize::MAX);
        model.rate(cycle(10, 1));
        let counts = |model: &Model| (model.policy.small.count, model.policy.main.count);
        // The first one is evicted for a new one, and returns.
        model.get(11, 1);
        assert_eq!(counts(&model), (10, 0));
        model.get(1, 1);
        assert_eq!(counts(&model), (9, 1));
    }

    #[test]
    fn mixed_sizes_register_no_more_bytes_than_lru() {
        // Zipf-like reuse of 400 buffers from a page to 4 MiB under 64 MiB, with a scan of large
        // ones now and then.
        let mut state = 88_172_645_463_325_252u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let trace: Vec<(u64, usize)> = (0..40_000)
            .map(|i| {
                let u = (random() % 1_000_000) as f64 / 1e6;
                let key = if i % 50 < 3 { 10_000 + i } else { (400.0_f64.powf(u)) as u64 };
                (key, 4096 << (key * 7 % 11))
            })
            .collect();
        let budget = 64 << 20;
        let mut model = Model::new(4096, budget);
        for &(key, bytes) in &trace {
            model.get(key, bytes);
        }
        let (mut order, mut used, mut lru) = (Vec::<(u64, usize)>::new(), 0, 0);
        for &(key, bytes) in &trace {
            if let Some(at) = order.iter().position(|e| e.0 == key) {
                let entry = order.remove(at);
                order.push(entry);
                continue;
            }
            while used + bytes > budget {
                used -= order.remove(0).1;
            }
            order.push((key, bytes));
            used += bytes;
            lru += bytes;
        }
        assert!(model.registered <= lru, "{} against LRU's {lru}", model.registered);
    }
}
