//! The k-mers of a sequence: its words of 31 bases.

/// The number of bases in a k-mer. It is odd, so that no k-mer is its own reverse complement; two
/// bits for each base fit a word.
pub const K: usize = 31;

const MASK: u64 = (1 << (2 * K)) - 1;
/// The value of [`CODES`] for letters that are no base.
const BREAK: u8 = 4;

/// The codes of A, C, G and T in two bits, such that the complement of `c` is `3 - c`. N and the
/// other letters for "one of several" break k-mers: unknown bases are not indexed.
const CODES: [u8; 256] = {
    let mut codes = [BREAK; 256];
    let mut code = 0;
    while code < 4 {
        codes[b"ACGT"[code as usize] as usize] = code;
        codes[b"acgt"[code as usize] as usize] = code;
        code += 1;
    }
    codes
};

/// An iterator over the canonical k-mers of a sequence with their positions, in order. The
/// canonical k-mer is the lesser of a k-mer and its reverse complement, so that both strands of the
/// molecule are equal.
pub struct Kmers<'a> {
    bases: &'a [u8],
    /// The next base to take.
    at: usize,
    /// The number of bases since the last break.
    run: usize,
    forward: u64,
    reverse: u64,
}

/// Returns the canonical k-mers of a sequence, as [`Kmers`] describes.
pub fn kmers(bases: &[u8]) -> Kmers<'_> {
    Kmers { bases, at: 0, run: 0, forward: 0, reverse: 0 }
}

impl Iterator for Kmers<'_> {
    type Item = (usize, u64);

    #[inline]
    fn next(&mut self) -> Option<(usize, u64)> {
        loop {
            let code = CODES[usize::from(*self.bases.get(self.at)?)];
            self.at += 1;
            if code == BREAK {
                self.run = 0;
                continue;
            }
            self.forward = (self.forward << 2 | u64::from(code)) & MASK;
            self.reverse = self.reverse >> 2 | u64::from(3 - code) << (2 * (K - 1));
            self.run += 1;
            if self.run >= K {
                return Some((self.at - K, self.forward.min(self.reverse)));
            }
        }
    }
}

/// Formats a k-mer as letters.
pub fn letters(kmer: u64) -> String {
    (0..K).rev().map(|i| char::from(b"ACGT"[(kmer >> (2 * i) & 3) as usize])).collect()
}

/// Spreads k-mers, which are not random, over all words.
#[inline]
pub fn spread(kmer: u64) -> u64 {
    let x = (kmer ^ kmer >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes the canonical k-mers by their definition, on letters.
    fn by_letters(bases: &str) -> Vec<(usize, String)> {
        let complement = |c: char| "TGCA".chars().nth("ACGT".find(c).unwrap()).unwrap();
        let canonical = |word: &str| {
            let reverse: String = word.chars().rev().map(complement).collect();
            reverse.min(word.into())
        };
        let words = (0..).zip(bases.as_bytes().windows(K).map(|w| std::str::from_utf8(w).unwrap()));
        words.filter(|(_, w)| w.chars().all(|c| "ACGT".contains(c))).map(|(i, w)| (i, canonical(w))).collect()
    }

    fn found(bases: &str) -> Vec<(usize, String)> {
        kmers(bases.as_bytes()).map(|(at, kmer)| (at, letters(kmer))).collect()
    }

    fn random(length: usize, mut seed: u64) -> String {
        let mut next = || {
            seed = spread(seed + 1);
            char::from(b"ACGT"[(seed >> 60 & 3) as usize])
        };
        (0..length).map(|_| next()).collect()
    }

    #[test]
    fn canonical_kmers_follow_the_definition() {
        for seed in 0..20 {
            let bases = random(100, seed);
            assert_eq!(found(&bases), by_letters(&bases));
        }
    }

    #[test]
    fn both_strands_have_the_same_kmers() {
        let bases = random(200, 7);
        let other: Vec<u8> =
            bases.bytes().rev().map(|b| b"TGCA"[usize::from(CODES[usize::from(b)])]).collect();
        let mut strands = [bases.as_bytes(), &other].map(|s| kmers(s).map(|(_, k)| k).collect::<Vec<_>>());
        strands[1].reverse();
        assert_eq!(strands[0], strands[1]);
    }

    #[test]
    fn unknown_bases_break_kmers() {
        for letter in ["N", "R", "-", "*"] {
            let bases = format!("{}{letter}{}{letter}{}", random(40, 1), random(30, 2), random(31, 3));
            let starts: Vec<usize> = found(&bases).into_iter().map(|(at, _)| at).collect();
            assert_eq!(starts, (0..10).chain([72]).collect::<Vec<_>>());
            assert_eq!(found(&bases), by_letters(&bases));
        }
    }

    #[test]
    fn short_sequences_have_no_kmers_and_case_is_ignored() {
        assert_eq!(found(""), []);
        assert_eq!(found(&random(30, 4)), []);
        let bases = random(50, 5);
        assert_eq!(found(&bases.to_lowercase()), found(&bases));
    }
}
