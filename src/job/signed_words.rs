//! A conversion of unsigned to signed 64-bit integers for MPIs that compare them as signed.

/// The most significant bit.
const TOP: u64 = 1 << 63;

/// Unsigned 64-bit integers as signed ones in the same order: the most significant bit is flipped.
///
/// MPICH 4.0.2 compares unsigned 64-bit integers as signed ones, so that its maximum of 5 and
/// 2^64-1 is 5. A [`Collective`](super::Collective) over MPI therefore applies `MPI_MIN` and
/// `MPI_MAX` to these values.
///
/// ```
/// use hostbuf::job::SignedWords;
///
/// let mut words = [5, u64::MAX];
/// let signed = SignedWords::from_unsigned(&words);
/// assert!(signed.as_slice()[0] < signed.as_slice()[1]);
/// signed.write_to(&mut words);
/// assert_eq!(words, [5, u64::MAX]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedWords(Vec<i64>);

impl SignedWords {
    /// Converts `words`.
    #[must_use]
    pub fn from_unsigned(words: &[u64]) -> SignedWords {
        SignedWords(words.iter().map(|word| (word ^ TOP).cast_signed()).collect())
    }

    /// Returns the signed integers.
    #[must_use]
    pub fn as_slice(&self) -> &[i64] {
        &self.0
    }

    /// Returns the signed integers, for the result of a reduction.
    pub fn as_mut_slice(&mut self) -> &mut [i64] {
        &mut self.0
    }

    /// Converts back and writes the result to `words`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn write_to(&self, words: &mut [u64]) {
        assert_eq!(words.len(), self.0.len(), "the number of words");
        for (word, signed) in words.iter_mut().zip(&self.0) {
            *word = signed.cast_unsigned() ^ TOP;
        }
    }
}
