//! The memory of a ring counts against the budget of a registration cache.

use std::sync::Arc;

use hostbuf_register::{Access, Budget, Error, Mlock, MonitorMode, RegistrationCache};

use super::byte_source::{ByteSource, PIECE, SLOT, pattern, target};
use crate::{BorrowedMemory, Ring, RingOptions, SimulatedDevice};

/// The number of slots of a ring.
const SLOTS: usize = 4;

fn cache(budget: usize) -> Arc<RegistrationCache<Mlock>> {
    let budget = Budget::new(8).bytes(budget);
    Arc::new(RegistrationCache::new(Arc::new(Mlock::new()), budget, MonitorMode::Explicit).expect("a thread"))
}

fn leased_ring(cache: &Arc<RegistrationCache<Mlock>>) -> Result<Ring<SimulatedDevice>, Error> {
    let options = RingOptions::new().slots(SLOTS).slot_bytes(SLOT).piece_bytes(PIECE).workers(2);
    let memory = BorrowedMemory::leased(cache, SLOTS * SLOT)?;
    Ok(Ring::new(SimulatedDevice::new(), options, memory).expect("the options are valid"))
}

#[test]
fn a_ring_counts_against_the_budget_until_it_ends() {
    // Room for one ring, and for less than another one.
    let bytes = SLOTS * SLOT;
    let cache = cache(2 * bytes - 4096);
    let ring = leased_ring(&cache).unwrap();
    assert_eq!(cache.stats().registrations, 1);
    let error = leased_ring(&cache).unwrap_err();
    let Error::Budget { bytes: (counted, limit), .. } = error else { panic!("{error}") };
    assert_eq!((counted, limit), (bytes, 2 * bytes - 4096));
    // Other registrations get the rest, and are evicted; that of the ring stays.
    let memory = vec![0_u8; 64 * SLOT];
    for start in (0..memory.len()).step_by(SLOT) {
        drop(cache.get(&memory[start], 1, Access::READ).unwrap());
    }
    let stats = cache.stats();
    assert!(stats.evictions > 0 && stats.registrations == cache.budget().registrations, "{stats:?}");
    let content = pattern(9 * SLOT, 1);
    let (on_device, to) = target(content.len());
    ring.read(Arc::new(ByteSource::new(content.clone())), 0, to).wait().unwrap();
    assert!(on_device.content() == content);
    cache.flush().unwrap();
    assert_eq!(cache.stats().registrations, 1);
    drop(ring);
    assert_eq!(cache.stats().registrations, 0, "the end of the ring ends the registration");
    drop(leased_ring(&cache).unwrap());
}

#[test]
fn a_ring_beyond_the_whole_budget_is_refused() {
    let cache = cache(SLOTS * SLOT - 4096);
    let error = leased_ring(&cache).unwrap_err();
    assert!(matches!(error, Error::Budget { .. }), "{error}");
    assert_eq!(cache.stats().registrations, 0);
}

#[test]
fn a_ring_keeps_the_cache_of_its_memory() {
    let cache = cache(SLOTS * SLOT);
    let ring = leased_ring(&cache).unwrap();
    let weak = Arc::downgrade(&cache);
    drop(cache);
    assert_eq!(weak.strong_count(), 1);
    drop(ring);
    assert_eq!(weak.strong_count(), 0);
}
