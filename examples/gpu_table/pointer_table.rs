//! A hash table whose lists are linked by pointers: buckets, and nodes of a key, a value and the
//! address of the next node.

/// The factor of Fibonacci hashing (Knuth, "The Art of Computer Programming", volume 3, section
/// 6.4): 2^64 divided by the golden ratio.
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
/// The length of a node in words.
const NODE: usize = 3;

/// The numbers of buckets and of keys of a table.
#[derive(Clone, Copy)]
pub struct TableShape {
    /// The number of buckets, a power of two.
    pub buckets: usize,
    /// The number of keys.
    pub keys: usize,
}

impl TableShape {
    /// Returns the shape of a table that fits into `bytes` bytes, at least 64.
    pub fn of(bytes: usize) -> TableShape {
        let words = bytes / size_of::<u64>();
        // A table with about as many buckets as keys takes four words for each.
        let buckets = (words / 4 + 1).next_power_of_two() / 2;
        TableShape { buckets, keys: (words - buckets) / NODE }
    }

    /// Returns the words of the table of all keys. They are valid at the address `at` alone, since
    /// the pointers among them are addresses.
    pub fn words_at(self, at: u64) -> Vec<u64> {
        let mut words = vec![0; self.buckets + self.keys * NODE];
        for i in 0..self.keys {
            let (place, key) = (self.buckets + i * NODE, key(i));
            // The kernel computes the same.
            let bucket = (key.wrapping_mul(FACTOR) >> 32) as usize & (self.buckets - 1);
            let next = words[bucket];
            words[place..place + NODE].copy_from_slice(&[key, value(key), next]);
            words[bucket] = at + (place * size_of::<u64>()) as u64;
        }
        words
    }
}

/// Returns key number `i`.
pub fn key(i: usize) -> u64 {
    i as u64 * 7 + 1
}

/// Returns the value of a key, which is not 0.
pub fn value(key: u64) -> u64 {
    key ^ FACTOR
}
