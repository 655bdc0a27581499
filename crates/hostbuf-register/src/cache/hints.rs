//! The hints of a thread: for each page that it has sent from, the slot that covered the page at
//! its last hit.
//!
//! No other thread reads a hint, so a hit that finds its slot by a hint touches no cache line that
//! others change. A hint may be wrong and is validated by its user, so the end of a registration
//! need not remove it. The only exception is a slot whose versions wrap around, which happens after
//! 2^24 registrations.
//!
//! ```text
//!   page ──hash──> pair: slot | tag | version, key; twice     nearly always right, one load
//!          └─────> bucket: six tags | stores | six slots        overflow of the pairs, 32 bytes
//! ```
//!
//! A primary hint has a copy of the registration's key, and the version of the slot identifies the
//! registration. So the caller has the key after a single load, and the validation of the slot
//! overlaps with the caller's own work.
//!
//! The tags of a bucket are compared all at once.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::cache_slot::CacheSlot;
use hostbuf_os::array::Zero;

/// The number of hints in a bucket.
const WAYS: usize = 6;
/// The lowest bit of each tag.
const LOW: u64 = 0x0000_0101_0101_0101;
/// The highest bit of each tag.
const HIGH: u64 = 0x0000_8080_8080_8080;
/// The position of the number of stores above the tags. It selects the next hint to be replaced.
const STORES: u32 = 56;
/// The position of the tag in a primary hint, above the slot.
const FIRST_TAG: u32 = 26;
/// The position of the version in a primary hint, above the tag.
const FIRST_VERSION: u32 = 40;
/// The number of stores of other pages that a primary hint survives.
const REPLACE_AFTER: u64 = 8;

/// A slot, its version at the time of the hit, and the key of that registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hint<K> {
    pub(super) slot: CacheSlot,
    /// The lowest [`VERSION_BITS`](super::slot::VERSION_BITS) bits of the version.
    pub(super) version: u32,
    pub(super) key: K,
}

/// A primary hint that was found, and its place.
#[derive(Clone, Copy)]
pub(super) struct FoundHint<'a, K> {
    first: &'a PrimaryHint<K>,
    word: u64,
    pub(super) hint: Hint<K>,
}

impl<K> FoundHint<'_, K> {
    /// Returns whether the hint has not been removed since it was found. The caller has observed
    /// the slot to be live before: a removal, for versions that wrap around, comes before the slot
    /// is live again.
    #[inline(always)]
    pub(super) fn is_current(&self) -> bool {
        self.first.word.load(Ordering::Relaxed) == self.word
    }
}

/// Two primary hints. A page prefers one of the two places, and uses the other if that is taken.
#[repr(C)]
pub(super) struct HintPair<K>([PrimaryHint<K>; 2]);

/// A hint that a page finds first: a word with the slot in the low bits, a tag that is not 0 above
/// them, and the version above that, or 0 for no hint; and the key.
#[repr(C)]
struct PrimaryHint<K> {
    word: AtomicU64,
    /// Accessed by its thread only, and written whenever the word becomes a hint.
    key: UnsafeCell<MaybeUninit<K>>,
}

/// The hints that have no place in a pair: tags from 1 to 255, or 0 for no hint, and slots. Two
/// buckets share a cache line.
#[derive(Default)]
#[repr(C, align(32))]
pub(super) struct OverflowBucket {
    tags: AtomicU64,
    slots: [AtomicU32; WAYS],
}

// SAFETY: integers, for which zero bytes are valid.
#[allow(unsafe_code, reason = "the all-zero bytes are a valid value")]
unsafe impl Zero for OverflowBucket {}

/// The numbers of pairs and buckets of a thread, which are powers of two.
#[derive(Clone, Copy)]
pub(super) struct HintSizes {
    pub(super) pairs: usize,
    pub(super) buckets: usize,
    /// The number of low bits of a hash that are not part of the number of a pair.
    shift: u32,
}

impl HintSizes {
    /// Returns the sizes for a number of slots. If one page of each is requested, 97 % of the pages
    /// have a primary hint even if they are random, and nearly all others an overflow hint.
    pub(super) fn new(slots: usize) -> HintSizes {
        let pairs = (2 * slots).next_power_of_two().max(64);
        HintSizes { pairs, buckets: pairs / 8, shift: 64 - pairs.trailing_zeros() }
    }

    /// Makes empty pairs and buckets. For tests: otherwise they are part of a thread's block.
    #[cfg(test)]
    pub(super) fn made<K>(self) -> (Box<[HintPair<K>]>, Box<[OverflowBucket]>) {
        let nothing =
            |_| PrimaryHint { word: AtomicU64::new(0), key: UnsafeCell::new(MaybeUninit::uninit()) };
        let pairs = (0..self.pairs).map(|_| HintPair([0, 1].map(nothing))).collect();
        (pairs, (0..self.buckets).map(|_| OverflowBucket::default()).collect())
    }

    /// Returns the place of the hints of `page`.
    #[inline(always)]
    pub(super) fn place(self, page: usize) -> HintPlace {
        // Buffers often have equal distances. Only the highest bits of this product are spread
        // evenly over such pages.
        let hash = (page as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        HintPlace { pair: (hash >> self.shift) as usize, below: (hash >> (self.shift - 16)) as u16 }
    }
}

/// The place of a page's hints: the number of the pair, and the bits of the hash below that number.
#[derive(Clone, Copy)]
pub(super) struct HintPlace {
    pub(super) pair: usize,
    below: u16,
}

impl HintPlace {
    /// Returns the number of the bucket.
    #[inline]
    pub(super) fn bucket(self, sizes: HintSizes) -> usize {
        self.pair & (sizes.buckets - 1)
    }

    /// Returns the place in the pair that the page prefers.
    #[inline(always)]
    fn preferred(self) -> usize {
        usize::from(self.below >> 15)
    }

    /// Returns the tag of the page in a primary hint.
    #[inline(always)]
    fn first_tag(self) -> u64 {
        // Pages that prefer different places have different tags.
        u64::from(self.below >> 2 | 1)
    }

    /// Returns the tag of the page in a bucket.
    #[inline]
    fn tag(self) -> u8 {
        self.below as u8 | 1
    }
}

#[allow(unsafe_code, reason = "only the thread that owns the hints may use them")]
impl<K: Copy> HintPair<K> {
    /// Finds the hint of a page. Rarely it is the hint of another page.
    ///
    /// # Safety
    /// The hints belong to the calling thread.
    #[inline(always)]
    pub(super) unsafe fn find(&self, place: HintPlace) -> Option<FoundHint<'_, K>> {
        let (preferred, other) = self.preferred_first(place);
        // SAFETY: the hints belong to the calling thread, by the contract of this function.
        unsafe { preferred.find(place).or_else(|| other.find(place)) }
    }

    /// Stores a hint in a place that has a hint of the same slot, no hint or an `outdated` one (a
    /// slot and a version), and with `anyhow` in the preferred place in any case. A valid hint of
    /// the same page is neither replaced nor joined by another. Returns whether the hint has been
    /// stored.
    ///
    /// # Safety
    /// The hints belong to the calling thread.
    pub(super) unsafe fn store(
        &self,
        place: HintPlace,
        hint: Hint<K>,
        anyhow: bool,
        outdated: impl Fn(CacheSlot, u32) -> bool,
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
        // SAFETY: the hints belong to the calling thread, by the contract of this function.
        at.map(|first| unsafe { first.set(place, hint) }).is_some()
    }

    /// Returns both hints, the one in the page's preferred place first.
    #[inline(always)]
    fn preferred_first(&self, place: HintPlace) -> (&PrimaryHint<K>, &PrimaryHint<K>) {
        let preferred = place.preferred();
        (&self.0[preferred], &self.0[preferred ^ 1])
    }
}

impl<K> HintPair<K> {
    /// Removes the hints of a slot. Any thread may call it.
    pub(super) fn remove(&self, slot: CacheSlot) {
        self.0.iter().for_each(|first| first.remove(slot));
    }
}

#[allow(unsafe_code, reason = "only the thread that owns the hints may use them")]
impl<K: Copy> PrimaryHint<K> {
    /// Returns the hint if it has the page's tag.
    ///
    /// # Safety
    /// The hint belongs to the calling thread.
    #[inline(always)]
    unsafe fn find(&self, place: HintPlace) -> Option<FoundHint<'_, K>> {
        let word = self.word.load(Ordering::Relaxed);
        if tag_in(word) != place.first_tag() {
            return None;
        }
        // SAFETY: a word with a tag, which is not 0, has a key, and no other thread accesses the
        // key.
        let key = unsafe { (*self.key.get()).assume_init() };
        Some(FoundHint {
            first: self,
            word,
            hint: Hint { slot: slot_in(word), version: version_in(word), key },
        })
    }

    /// Replaces the hint.
    ///
    /// # Safety
    /// The hint belongs to the calling thread.
    unsafe fn set(&self, place: HintPlace, hint: Hint<K>) {
        // SAFETY: no other thread accesses the key.
        unsafe { (*self.key.get()).write(hint.key) };
        let below = place.first_tag() << FIRST_TAG | u64::from(hint.slot.number());
        self.word.store(u64::from(hint.version) << FIRST_VERSION | below, Ordering::Relaxed);
    }
}

impl<K> PrimaryHint<K> {
    /// Removes the hint if it is one of `slot`.
    fn remove(&self, slot: CacheSlot) {
        let word = self.word.load(Ordering::Relaxed);
        if slot_in(word) == slot {
            // A hint that its thread has stored meanwhile stays.
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
fn slot_in(word: u64) -> CacheSlot {
    CacheSlot::new(word as u32 & ((1 << FIRST_TAG) - 1))
}

/// Stores a hint in a free place, or in place of an `outdated` hint (a slot and a version), of an
/// overflow hint whose slot lies `elsewhere`, or of the one whose turn it is.
///
/// # Safety
/// The hints belong to the calling thread.
#[allow(unsafe_code, reason = "only the thread that owns the hints may use them")]
pub(super) unsafe fn store<K: Copy>(
    pair: &HintPair<K>,
    bucket: &OverflowBucket,
    place: HintPlace,
    hint: Hint<K>,
    outdated: impl Fn(CacheSlot, u32) -> bool,
    elsewhere: impl Fn(CacheSlot) -> bool,
) {
    let turn = bucket.count_store();
    // SAFETY: the hints belong to the calling thread, by the contract of this function.
    if !unsafe { pair.store(place, hint, turn.is_multiple_of(REPLACE_AFTER), outdated) } {
        bucket.store(place, hint.slot, turn as usize % WAYS, elsewhere);
    }
}

impl OverflowBucket {
    /// Returns the slots of the hints of a page. Rarely one is of another page.
    #[inline]
    pub(super) fn slots_for(&self, place: HintPlace) -> impl Iterator<Item = CacheSlot> {
        let different = self.tags.load(Ordering::Relaxed) ^ (LOW * u64::from(place.tag()));
        // The highest bit of each byte that is zero; rarely also that of a byte above one.
        let mut left = different.wrapping_sub(LOW) & !different & HIGH;
        std::iter::from_fn(move || {
            let way = left.trailing_zeros() as usize / 8;
            left &= left.wrapping_sub(1);
            Some(CacheSlot::new(self.slots.get(way)?.load(Ordering::Relaxed)))
        })
    }

    /// Counts a store, and returns the number of stores so far, modulo 256.
    fn count_store(&self) -> u64 {
        let tags = self.tags.load(Ordering::Relaxed).wrapping_add(1 << STORES);
        self.tags.store(tags, Ordering::Relaxed);
        tags >> STORES
    }

    /// Stores a slot in the place of the same hint, in a free place, in place of an `outdated` hint
    /// with the same tag, or in the place `turn`.
    fn store(&self, place: HintPlace, slot: CacheSlot, turn: usize, outdated: impl Fn(CacheSlot) -> bool) {
        let tags = self.tags.load(Ordering::Relaxed);
        let slot_of = |way: usize| CacheSlot::new(self.slots[way].load(Ordering::Relaxed));
        let same = |way: usize| (tags >> (8 * way)) as u8 == place.tag();
        let known = (0..WAYS).find(|&way| same(way) && slot_of(way) == slot);
        let free = || (0..WAYS).find(|&way| (tags >> (8 * way)) as u8 == 0);
        let useless = || (0..WAYS).find(|&way| same(way) && outdated(slot_of(way)));
        let way = known.or_else(free).or_else(useless).unwrap_or(turn);
        self.slots[way].store(slot.number(), Ordering::Relaxed);
        let others = tags & !(0xff << (8 * way));
        self.tags.store(others | u64::from(place.tag()) << (8 * way), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
