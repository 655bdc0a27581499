//! Tests of the hints of one thread.

#![allow(unsafe_code, reason = "the hints are those of the thread of the test")]

use super::*;
use crate::cache::slot::VERSION_BITS;

struct All {
    sizes: HintSizes,
    pairs: Box<[HintPair<u64>]>,
    buckets: Box<[OverflowBucket]>,
}

impl All {
    fn new(slots: usize) -> All {
        let sizes = HintSizes::new(slots);
        let (pairs, buckets) = sizes.made();
        All { sizes, pairs, buckets }
    }

    fn store(&self, page: usize, slot: CacheSlot, outdated: impl Fn(CacheSlot) -> bool) {
        let place = self.sizes.place(page);
        let (pair, bucket) = (&self.pairs[place.pair], &self.buckets[place.bucket(self.sizes)]);
        // SAFETY: only this thread has the hints.
        unsafe { store(pair, bucket, place, hint(slot), |_, _| false, outdated) };
    }

    /// Returns the primary hint and the overflow hints.
    fn lookup(&self, page: usize) -> (Option<CacheSlot>, Vec<CacheSlot>) {
        let place = self.sizes.place(page);
        let others = self.buckets[place.bucket(self.sizes)].slots_for(place).collect();
        (hinted(&self.pairs[place.pair], place), others)
    }
}

fn slot(number: u32) -> CacheSlot {
    CacheSlot::new(number)
}

/// Makes a hint whose version and key follow from the slot.
fn hint(slot: CacheSlot) -> Hint<u64> {
    Hint { slot, version: !slot.number() & ((1 << VERSION_BITS) - 1), key: u64::from(slot.number()) << 7 }
}

fn hinted(pair: &HintPair<u64>, place: HintPlace) -> Option<CacheSlot> {
    // SAFETY: only this thread has the hints.
    let there = unsafe { pair.find(place) }?;
    assert!(there.is_current());
    assert_eq!(there.hint, hint(there.hint.slot));
    Some(there.hint.slot)
}

/// The page from which each slot is requested, and the percentage of slots that must have a primary
/// hint.
type PagePattern = (fn(usize) -> usize, usize);

#[test]
fn stored_hints_are_found() {
    const SLOTS: usize = 16384;
    // Pages at equal distances, and at odd ones.
    let patterns: [PagePattern; 5] = [
        (|slot| slot, 99),
        (|slot| 0x100_0000 + slot * 8 + slot % 2 * 2, 88),
        (|slot| 0x7f_0000_0000 + slot * 512, 99),
        (|slot| slot * 37 + (slot * slot) % 31, 95),
        (|slot| slot * slot, 94),
    ];
    for (pattern, (page, at_once)) in patterns.into_iter().enumerate() {
        let all = All::new(SLOTS);
        for _ in 0..3 {
            for slot in 0..SLOTS {
                let (first, others) = all.lookup(page(slot));
                if first != Some(CacheSlot::from_index(slot))
                    && !others.contains(&(CacheSlot::from_index(slot)))
                {
                    all.store(page(slot), CacheSlot::from_index(slot), |_| false);
                }
            }
        }
        let (mut known, mut firsts, mut wrong) = (0, 0, 0);
        for slot in 0..SLOTS {
            let (first, others) = all.lookup(page(slot));
            firsts += usize::from(first == Some(CacheSlot::from_index(slot)));
            wrong += usize::from(first.is_some_and(|first| first != CacheSlot::from_index(slot)));
            known += usize::from(
                first == Some(CacheSlot::from_index(slot)) || others.contains(&(CacheSlot::from_index(slot))),
            );
        }
        assert!(firsts * 100 >= SLOTS * at_once, "{pattern}: {firsts} of {SLOTS} at once");
        assert!(known * 100 >= SLOTS * 98, "{pattern}: {known} of {SLOTS}");
        assert!(wrong * 100 <= SLOTS, "{pattern}: {wrong} of {SLOTS} wrong");
    }
}

#[test]
fn a_bucket_replaces_outdated_hints_first_and_then_in_turn() {
    let all = All::new(1);
    let bucket = &all.buckets[0];
    let at = |tag: u16| HintPlace { pair: 0, below: 2 * tag };
    let first = |tag: u16| bucket.slots_for(at(tag)).next();
    assert_eq!(first(1), None);
    for n in 1..=6 {
        bucket.store(at(n), slot(n.into()), usize::from(n) % WAYS, |_| false);
    }
    assert!((1..=6).all(|n| first(n) == Some(slot(n.into()))));
    bucket.store(at(3), slot(30), 0, |slot| slot.number() == 3);
    assert_eq!((first(3), first(1)), (Some(slot(30)), Some(slot(1))));
    // Two hints of one page, both valid.
    bucket.store(at(3), slot(31), 0, |_| false);
    let both: Vec<u32> = bucket.slots_for(at(3)).map(CacheSlot::number).collect();
    assert!(both.contains(&30) && both.contains(&31), "{both:?}");
    for n in 50..56 {
        bucket.store(at(n), slot(n.into()), usize::from(n) % WAYS, |_| false);
    }
    assert!((50..56).all(|n| first(n) == Some(slot(n.into()))), "the last six are there");
    assert!((1..7).all(|n| first(n).is_none()));
}

#[test]
fn a_primary_hint_is_replaced_after_several_stores() {
    let all = All::new(1);
    let [a, b, c] = [16, 32, 48].map(|below| HintPlace { pair: 0, below });
    let (pair, bucket) = (&all.pairs[0], &all.buckets[0]);
    // SAFETY: only this thread has the hints.
    let store = |place, slot| unsafe { store(pair, bucket, place, hint(slot), |_, _| false, |_| false) };
    // All prefer the same place, and the second has the other one.
    store(a, slot(1));
    store(b, slot(2));
    assert_eq!((hinted(pair, a), hinted(pair, b)), (Some(slot(1)), Some(slot(2))));
    let mut asked = 0;
    while hinted(pair, c).is_none() {
        store(c, slot(3));
        asked += 1;
        assert!(asked <= REPLACE_AFTER);
    }
    assert_eq!([a, b, c].map(|place| hinted(pair, place)), [None, Some(slot(2)), Some(slot(3))]);
    assert!(asked > 1, "it survives several stores");
}

/// Each slot is requested from one page after another: the current pages have the primary hints,
/// and not earlier ones.
#[test]
fn outdated_hints_make_room() {
    const SLOTS: usize = 4096;
    let all = All::new(SLOTS);
    let mut state = 88_172_645_463_325_252_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize >> 20
    };
    for generation in 0..12u32 {
        let pages: Vec<usize> = (0..SLOTS).map(|_| random()).collect();
        let mut at_once = 0;
        for _ in 0..5 {
            at_once = 0;
            for (slot, &page) in pages.iter().enumerate() {
                let place = all.sizes.place(page);
                let (pair, bucket) = (&all.pairs[place.pair], &all.buckets[place.bucket(all.sizes)]);
                let hint = Hint { slot: CacheSlot::from_index(slot), version: generation, key: 0 };
                let outdated = |_: CacheSlot, version: u32| version != generation;
                // SAFETY: only this thread has the hints.
                unsafe {
                    match pair.find(place) {
                        Some(found) if found.hint == hint => at_once += 1,
                        _ if bucket.slots_for(place).any(|other| other == hint.slot) => {
                            pair.store(place, hint, false, outdated);
                        }
                        _ => {
                            store(pair, bucket, place, hint, outdated, |other| pages[other.index()] != page);
                        }
                    }
                }
            }
        }
        assert!(at_once * 100 >= SLOTS * 94, "{at_once} of {SLOTS} at once in generation {generation}");
    }
}

/// Two registrations lie in one page, and both are requested.
#[test]
fn two_slots_of_one_page_do_not_replace_each_other() {
    let all = All::new(64);
    let place = all.sizes.place(77);
    all.store(77, slot(1), |_| false);
    for _ in 0..100 {
        all.store(77, slot(2), |_| false);
    }
    assert_eq!(hinted(&all.pairs[place.pair], place), Some(slot(1)));
    assert!(all.lookup(77).1.contains(&slot(2)));
}

#[test]
fn removing_a_slot_keeps_the_hints_of_others() {
    let all = All::new(64);
    (0..64).for_each(|page| all.store(page, CacheSlot::from_index(page), |_| false));
    let place = all.sizes.place(7);
    // SAFETY: only this thread has the hints.
    let before = unsafe { all.pairs[place.pair].find(place) }.unwrap();
    all.pairs.iter().for_each(|pair| pair.remove(slot(7)));
    assert!(!before.is_current());
    assert_eq!(all.lookup(7).0, None);
    let others = (0..64).filter(|&slot| all.lookup(slot).0 == Some(CacheSlot::from_index(slot))).count();
    assert!(others > 50, "{others}");
    all.store(7, slot(7), |_| false);
    assert_eq!(all.lookup(7).0, Some(slot(7)));
}
