//! What a thread remembers of its own hits: which slot covered a page when it asked last. Nobody else reads it, so a hit that
//! finds its slot here touches no line that others change; and since a guess is only a guess, whoever ends a registration need
//! not tell, but once in 2^24 times, when the numbers of a slot begin again.
//!
//! ```text
//!   page ──hash──> pair:  slot | tag | number, key   twice                nearly always right, and the shortest way
//!          └─────> bucket (half a line): six tags of a byte | whose turn | six slots        what has no place there
//! ```
//!
//! A first guess has a copy of the registration's key, and says by the number of the slot's description which registration
//! that was. So what a user does with the key need not wait for the slot, which is a look at memory later: the slot is only
//! compared with the guess.
//!
//! The tags of a bucket are compared all at once.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::os::array::Zero;

const WAYS: usize = 6;
/// A byte of each tag's place: its lowest bit, its highest.
const LOW: u64 = 0x0000_0101_0101_0101;
const HIGH: u64 = 0x0000_8080_8080_8080;
/// Whose turn it is to be forgotten, above the tags.
const STORES: u32 = 56;
/// Above the slot of a first guess: its tag, and above that the number.
const FIRST_TAG: u32 = 26;
const FIRST_VERSION: u32 = 40;
/// How often a first guess that another page would like to have stands before it goes.
const REPLACE_AFTER: u64 = 8;

/// A slot, the number of its description, and the key that its registration had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hint<K> {
    pub(super) slot: u32,
    /// Of [`VERSION_BITS`](super::slot::VERSION_BITS) bits.
    pub(super) version: u32,
    pub(super) key: K,
}

/// A first guess that was found, and where.
#[derive(Clone, Copy)]
pub(super) struct FoundHint<'a, K> {
    first: &'a PrimaryHint<K>,
    word: u64,
    pub(super) hint: Hint<K>,
}

impl<K> FoundHint<'_, K> {
    /// Whether it is still there. Asked when the slot has been seen live: whoever has taken it away since it was found, since the
    /// slot's numbers have begun again, did so before that.
    #[inline(always)]
    pub(super) fn is_current(&self) -> bool {
        self.first.word.load(Ordering::Relaxed) == self.word
    }
}

/// Two places for first guesses: a page has one of them that it likes, and the other if that is taken.
#[repr(C)]
pub(super) struct HintPair<K>([PrimaryHint<K>; 2]);

/// Slot in the low bits, above them a tag that is not 0, and above that the number; 0 for nothing. Then the key.
#[repr(C)]
struct PrimaryHint<K> {
    word: AtomicU64,
    /// Its thread's alone; written wherever the word becomes something.
    key: UnsafeCell<MaybeUninit<K>>,
}

/// Tags of 1 to 255, 0 where there is nothing; the slots. Half a line, so that two share one.
#[derive(Default)]
#[repr(C, align(32))]
pub(super) struct OverflowBucket {
    tags: AtomicU64,
    slots: [AtomicU32; WAYS],
}

// SAFETY: numbers.
#[allow(unsafe_code)]
unsafe impl Zero for OverflowBucket {}

/// How many of both a thread has: powers of two.
#[derive(Clone, Copy)]
pub(super) struct HintSizes {
    pub(super) pairs: usize,
    pub(super) buckets: usize,
    /// How far down a hash is shifted to be the number of a pair.
    shift: u32,
}

impl HintSizes {
    /// For so many slots. With one page asked for from each, 97 of a hundred have a first guess even where pages are at random, and
    /// nearly all of the others a place in a bucket.
    pub(super) fn new(slots: usize) -> HintSizes {
        let pairs = (2 * slots).next_power_of_two().max(64);
        HintSizes { pairs, buckets: pairs / 8, shift: 64 - pairs.trailing_zeros() }
    }

    /// So many, with nothing in them, for tests: else they lie in a thread's lines.
    #[cfg(test)]
    pub(super) fn made<K>(self) -> (Box<[HintPair<K>]>, Box<[OverflowBucket]>) {
        let nothing =
            |_| PrimaryHint { word: AtomicU64::new(0), key: UnsafeCell::new(MaybeUninit::uninit()) };
        let pairs = (0..self.pairs).map(|_| HintPair([0, 1].map(nothing))).collect();
        (pairs, (0..self.buckets).map(|_| OverflowBucket::default()).collect())
    }

    /// Where the guesses of `page` are.
    #[inline(always)]
    pub(super) fn place(self, page: usize) -> HintPlace {
        // The highest bits of this product are spread evenly over pages at equal distances, as buffers often are; lower ones
        // are not.
        let hash = (page as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        HintPlace { pair: (hash >> self.shift) as usize, below: (hash >> (self.shift - 16)) as u16 }
    }
}

/// Where a page's guesses are, and the bits of its hash below that number.
#[derive(Clone, Copy)]
pub(super) struct HintPlace {
    pub(super) pair: usize,
    below: u16,
}

impl HintPlace {
    pub(super) fn bucket(self, sizes: HintSizes) -> usize {
        self.pair & (sizes.buckets - 1)
    }

    /// Which of a pair it likes.
    #[inline(always)]
    fn preferred(self) -> usize {
        usize::from(self.below >> 15)
    }

    #[inline(always)]
    fn first_tag(self) -> u64 {
        // Those that like different places have different tags.
        u64::from(self.below >> 2 | 1)
    }

    fn tag(self) -> u8 {
        self.below as u8 | 1
    }
}

#[allow(unsafe_code)]
impl<K: Copy> HintPair<K> {
    /// The slot that is meant, or seldom another.
    ///
    /// # Safety
    /// The calling thread is the one whose guesses these are.
    #[inline(always)]
    pub(super) unsafe fn find(&self, place: HintPlace) -> Option<FoundHint<'_, K>> {
        let (preferred, other) = self.preferred_first(place);
        // SAFETY: by the contract of this.
        unsafe { preferred.find(place).or_else(|| other.find(place)) }
    }

    /// Remembers a slot in the place of its page, or in one that is empty or `wrong` by now (a slot and its number), or
    /// `anyhow`; but not beside or instead of another slot of the same page that is right. Whether it does.
    ///
    /// # Safety
    /// As for `guess`.
    pub(super) unsafe fn store(
        &self,
        place: HintPlace,
        hint: Hint<K>,
        anyhow: bool,
        outdated: impl Fn(u32, u32) -> bool,
    ) -> bool {
        let (preferred, other) = self.preferred_first(place);
        let both = [preferred, other].map(|first| (first, first.word.load(Ordering::Relaxed)));
        let is_free =
            |word: u64| word == 0 || slot_in(word) == hint.slot || outdated(slot_in(word), version_in(word));
        let at = match both.iter().find(|(_, word)| tag_in(*word) == place.first_tag()) {
            Some((first, word)) => is_free(*word).then_some(*first),
            None => {
                let free = both.iter().find(|(_, word)| is_free(*word)).map(|(first, _)| *first);
                free.or(anyhow.then_some(preferred))
            }
        };
        // SAFETY: by the contract of this.
        at.map(|first| unsafe { first.set(place, hint) }).is_some()
    }

    #[inline(always)]
    fn preferred_first(&self, place: HintPlace) -> (&PrimaryHint<K>, &PrimaryHint<K>) {
        let preferred = place.preferred();
        (&self.0[preferred], &self.0[preferred ^ 1])
    }
}

impl<K> HintPair<K> {
    /// Any thread may say that there is nothing to be known of `slot` any more.
    pub(super) fn remove(&self, slot: u32) {
        self.0.iter().for_each(|first| first.remove(slot));
    }
}

#[allow(unsafe_code)]
impl<K: Copy> PrimaryHint<K> {
    /// # Safety
    /// The calling thread is the one whose guess this is.
    #[inline(always)]
    unsafe fn find(&self, place: HintPlace) -> Option<FoundHint<'_, K>> {
        let word = self.word.load(Ordering::Relaxed);
        if tag_in(word) != place.first_tag() {
            return None;
        }
        // SAFETY: there is a word, so there is a key, and no other thread has to do with it.
        let key = unsafe { (*self.key.get()).assume_init() };
        Some(FoundHint {
            first: self,
            word,
            hint: Hint { slot: slot_in(word), version: version_in(word), key },
        })
    }

    /// # Safety
    /// As for `guess`.
    unsafe fn set(&self, place: HintPlace, hint: Hint<K>) {
        // SAFETY: as above.
        unsafe { (*self.key.get()).write(hint.key) };
        let below = place.first_tag() << FIRST_TAG | u64::from(hint.slot);
        self.word.store(u64::from(hint.version) << FIRST_VERSION | below, Ordering::Relaxed);
    }
}

impl<K> PrimaryHint<K> {
    fn remove(&self, slot: u32) {
        let word = self.word.load(Ordering::Relaxed);
        if slot_in(word) == slot {
            // What its thread has learned meanwhile stays.
            let _ = self.word.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

#[inline(always)]
fn tag_in(word: u64) -> u64 {
    word >> FIRST_TAG & ((1 << (FIRST_VERSION - FIRST_TAG)) - 1)
}

#[inline(always)]
fn version_in(word: u64) -> u32 {
    (word >> FIRST_VERSION) as u32
}

#[inline(always)]
fn slot_in(word: u64) -> u32 {
    word as u32 & ((1 << FIRST_TAG) - 1)
}

/// Remembers a slot: in place of nothing, or of what is wrong by now (by its slot and number, or, in the bucket, by its slot,
/// which covers another page), or of one whose turn it is.
///
/// # Safety
/// The calling thread is the one whose guesses these are.
#[allow(unsafe_code)]
pub(super) unsafe fn store<K: Copy>(
    pair: &HintPair<K>,
    bucket: &OverflowBucket,
    place: HintPlace,
    hint: Hint<K>,
    outdated: impl Fn(u32, u32) -> bool,
    elsewhere: impl Fn(u32) -> bool,
) {
    let turn = bucket.count_store();
    // SAFETY: by the contract of this.
    if !unsafe { pair.store(place, hint, turn.is_multiple_of(REPLACE_AFTER), outdated) } {
        bucket.store(place, hint.slot, turn as usize % WAYS, elsewhere);
    }
}

impl OverflowBucket {
    /// The slots that may be meant, and seldom another.
    pub(super) fn slots_for(&self, place: HintPlace) -> impl Iterator<Item = u32> {
        let different = self.tags.load(Ordering::Relaxed) ^ (LOW * u64::from(place.tag()));
        // The highest bit of each byte that is zero; and seldom that of one above such a byte.
        let mut left = different.wrapping_sub(LOW) & !different & HIGH;
        std::iter::from_fn(move || {
            let way = left.trailing_zeros() as usize / 8;
            left &= left.wrapping_sub(1);
            Some(self.slots.get(way)?.load(Ordering::Relaxed))
        })
    }

    /// Counts those that have learned something here.
    fn count_store(&self) -> u64 {
        let tags = self.tags.load(Ordering::Relaxed).wrapping_add(1 << STORES);
        self.tags.store(tags, Ordering::Relaxed);
        tags >> STORES
    }

    fn store(&self, place: HintPlace, slot: u32, turn: usize, outdated: impl Fn(u32) -> bool) {
        let tags = self.tags.load(Ordering::Relaxed);
        let slot_of = |way: usize| self.slots[way].load(Ordering::Relaxed);
        let same = |way: usize| (tags >> (8 * way)) as u8 == place.tag();
        let known = (0..WAYS).find(|&way| same(way) && slot_of(way) == slot);
        let free = || (0..WAYS).find(|&way| (tags >> (8 * way)) as u8 == 0);
        let useless = || (0..WAYS).find(|&way| same(way) && outdated(slot_of(way)));
        let way = known.or_else(free).or_else(useless).unwrap_or(turn);
        self.slots[way].store(slot, Ordering::Relaxed);
        let others = tags & !(0xff << (8 * way));
        self.tags.store(others | u64::from(place.tag()) << (8 * way), Ordering::Relaxed);
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;
    use crate::register::cache::slot::VERSION_BITS;

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

        fn store(&self, page: usize, slot: u32, outdated: impl Fn(u32) -> bool) {
            let place = self.sizes.place(page);
            let (pair, bucket) = (&self.pairs[place.pair], &self.buckets[place.bucket(self.sizes)]);
            // SAFETY: this thread's.
            unsafe { store(pair, bucket, place, hint(slot), |_, _| false, outdated) };
        }

        /// The first guess, and the others.
        fn lookup(&self, page: usize) -> (Option<u32>, Vec<u32>) {
            let place = self.sizes.place(page);
            let others = self.buckets[place.bucket(self.sizes)].slots_for(place).collect();
            (hinted(&self.pairs[place.pair], place), others)
        }
    }

    /// With a number and a key that go with it.
    fn hint(slot: u32) -> Hint<u64> {
        Hint { slot, version: !slot & ((1 << VERSION_BITS) - 1), key: u64::from(slot) << 7 }
    }

    fn hinted(pair: &HintPair<u64>, place: HintPlace) -> Option<u32> {
        // SAFETY: this thread's.
        let there = unsafe { pair.find(place) }?;
        assert!(there.is_current());
        assert_eq!(there.hint, hint(there.hint.slot));
        Some(there.hint.slot)
    }

    /// Which page a slot is asked for by, and how many of a hundred are to have a first guess of their own.
    type Way = (fn(usize) -> usize, usize);

    #[test]
    fn stored_hints_are_found() {
        const SLOTS: usize = 16384;
        // Pages at equal distances, and at odd ones.
        let ways: [Way; 5] = [
            (|slot| slot, 99),
            (|slot| 0x100_0000 + slot * 8 + slot % 2 * 2, 88),
            (|slot| 0x7f_0000_0000 + slot * 512, 99),
            (|slot| slot * 37 + (slot * slot) % 31, 95),
            (|slot| slot * slot, 94),
        ];
        for (way, (page, at_once)) in ways.into_iter().enumerate() {
            let all = All::new(SLOTS);
            for _ in 0..3 {
                for slot in 0..SLOTS {
                    let (first, others) = all.lookup(page(slot));
                    if first != Some(slot as u32) && !others.contains(&(slot as u32)) {
                        all.store(page(slot), slot as u32, |_| false);
                    }
                }
            }
            let (mut known, mut firsts, mut wrong) = (0, 0, 0);
            for slot in 0..SLOTS {
                let (first, others) = all.lookup(page(slot));
                firsts += usize::from(first == Some(slot as u32));
                wrong += usize::from(first.is_some_and(|first| first != slot as u32));
                known += usize::from(first == Some(slot as u32) || others.contains(&(slot as u32)));
            }
            assert!(firsts * 100 >= SLOTS * at_once, "{way}: {firsts} of {SLOTS} at once");
            assert!(known * 100 >= SLOTS * 98, "{way}: {known} of {SLOTS}");
            assert!(wrong * 100 <= SLOTS, "{way}: {wrong} of {SLOTS} wrong");
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
            bucket.store(at(n), u32::from(n), usize::from(n) % WAYS, |_| false);
        }
        assert!((1..=6).all(|n| first(n) == Some(u32::from(n))));
        bucket.store(at(3), 30, 0, |slot| slot == 3);
        assert_eq!((first(3), first(1)), (Some(30), Some(1)));
        // Two of one page, both right.
        bucket.store(at(3), 31, 0, |_| false);
        let both: Vec<u32> = bucket.slots_for(at(3)).collect();
        assert!(both.contains(&30) && both.contains(&31), "{both:?}");
        for n in 50..56 {
            bucket.store(at(n), u32::from(n), usize::from(n) % WAYS, |_| false);
        }
        assert!((50..56).all(|n| first(n) == Some(u32::from(n))), "the last six are there");
        assert!((1..7).all(|n| first(n).is_none()));
    }

    #[test]
    fn a_primary_hint_is_replaced_after_several_stores() {
        let all = All::new(1);
        let [a, b, c] = [16, 32, 48].map(|below| HintPlace { pair: 0, below });
        let (pair, bucket) = (&all.pairs[0], &all.buckets[0]);
        // SAFETY: this thread's.
        let store = |place, slot| unsafe { store(pair, bucket, place, hint(slot), |_, _| false, |_| false) };
        // All like the same one, and the second has the other.
        store(a, 1);
        store(b, 2);
        assert_eq!((hinted(pair, a), hinted(pair, b)), (Some(1), Some(2)));
        let mut asked = 0;
        while hinted(pair, c).is_none() {
            store(c, 3);
            asked += 1;
            assert!(asked <= REPLACE_AFTER);
        }
        assert_eq!([a, b, c].map(|place| hinted(pair, place)), [None, Some(2), Some(3)]);
        assert!(asked > 1, "it stands for a while");
    }

    /// One page after the other for each slot: what is asked for now has the first guesses, and not what was asked for before.
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
                    let hint = Hint { slot: slot as u32, version: generation, key: 0 };
                    let outdated = |_: u32, version: u32| version != generation;
                    // SAFETY: this thread's.
                    unsafe {
                        match pair.find(place) {
                            Some(found) if found.hint == hint => at_once += 1,
                            _ if bucket.slots_for(place).any(|other| other == hint.slot) => {
                                pair.store(place, hint, false, outdated);
                            }
                            _ => store(pair, bucket, place, hint, outdated, |other| {
                                pages[other as usize] != page
                            }),
                        }
                    }
                }
            }
            assert!(at_once * 100 >= SLOTS * 94, "{at_once} of {SLOTS} at once in generation {generation}");
        }
    }

    /// Two registrations lie in one page, and both are asked for.
    #[test]
    fn two_slots_of_one_page_do_not_replace_each_other() {
        let all = All::new(64);
        let place = all.sizes.place(77);
        all.store(77, 1, |_| false);
        for _ in 0..100 {
            all.store(77, 2, |_| false);
        }
        assert_eq!(hinted(&all.pairs[place.pair], place), Some(1));
        assert!(all.lookup(77).1.contains(&2));
    }

    #[test]
    fn removing_a_slot_keeps_the_hints_of_others() {
        let all = All::new(64);
        (0..64).for_each(|slot| all.store(slot as usize, slot, |_| false));
        let place = all.sizes.place(7);
        // SAFETY: this thread's.
        let before = unsafe { all.pairs[place.pair].find(place) }.unwrap();
        all.pairs.iter().for_each(|pair| pair.remove(7));
        assert!(!before.is_current());
        assert_eq!(all.lookup(7).0, None);
        let others = (0..64).filter(|&slot| all.lookup(slot as usize).0 == Some(slot as u32)).count();
        assert!(others > 50, "{others}");
        all.store(7, 7, |_| false);
        assert_eq!(all.lookup(7).0, Some(7));
    }
}
