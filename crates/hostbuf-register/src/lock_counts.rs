//! Lock counts of address ranges.

use std::collections::BTreeMap;

use crate::span::Span;

/// The locked memory as runs of equal lock count: a map from the start of a run to its end and its
/// count. Runs are disjoint, and adjacent runs have different counts. The cost of each operation
/// depends on the number of runs, not on their lengths.
#[derive(Debug, Default)]
pub(super) struct LockCounts(BTreeMap<usize, (usize, usize)>);

fn between(start: usize, end: usize) -> Option<Span> {
    if start < end { Span::new(start, end - start).ok() } else { None }
}

impl LockCounts {
    /// Returns the parts of `span` that are not locked.
    pub(super) fn gaps(&self, span: Span) -> Vec<Span> {
        let first = self.0.range(..span.start()).next_back().filter(|(_, (end, _))| *end > span.start());
        let runs = first.into_iter().chain(self.0.range(span.start()..span.end()));
        let mut gaps = Vec::new();
        let mut at = span.start();
        for (&start, &(end, _)) in runs {
            gaps.extend(between(at, start));
            at = end;
        }
        gaps.extend(between(at, span.end()));
        gaps
    }

    /// Increments the count of all of `span`.
    pub(super) fn add(&mut self, span: Span) {
        for gap in self.gaps(span) {
            self.0.insert(gap.start(), (gap.end(), 0));
        }
        self.split(span);
        for (_, (_, count)) in self.0.range_mut(span.start()..span.end()) {
            *count += 1;
        }
        self.join(span);
    }

    /// Decrements the count of all of `span`. Returns the parts whose count is now 0.
    pub(super) fn remove(&mut self, span: Span) -> Vec<Span> {
        self.split(span);
        let mut unlocked = Vec::new();
        for (&start, (end, count)) in self.0.range_mut(span.start()..span.end()) {
            *count -= 1;
            if *count == 0 {
                unlocked.extend(between(start, *end));
            }
        }
        for run in &unlocked {
            self.0.remove(&run.start());
        }
        self.join(span);
        unlocked
    }

    /// Splits the runs at the edges of `span`.
    fn split(&mut self, span: Span) {
        for at in [span.start(), span.end()] {
            let across = self.0.range_mut(..at).next_back().filter(|(_, (end, _))| *end > at);
            if let Some((_, (end, count))) = across {
                let second = (*end, *count);
                *end = at;
                self.0.insert(at, second);
            }
        }
    }

    /// Joins adjacent runs of equal count, in `span` and at its edges.
    fn join(&mut self, span: Span) {
        let first = self.0.range(..span.start()).next_back().map_or(span.start(), |(&start, _)| start);
        let starts: Vec<usize> = self.0.range(first..=span.end()).map(|(&start, _)| start).collect();
        let mut into = first;
        for start in starts {
            let (end, count) = self.0[&start];
            match self.0.get_mut(&into) {
                Some(before) if into != start && *before == (start, count) => {
                    before.0 = end;
                    self.0.remove(&start);
                }
                _ => into = start,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ADDRESSES: usize = 40;

    proptest! {
        /// The model is an array with one count for each address.
        #[test]
        fn runs_have_the_counts_of_their_addresses(
            requests in prop::collection::vec((1..ADDRESSES, 1..ADDRESSES, any::<bool>()), 1..60)
        ) {
            let (mut locked, mut counts) = (LockCounts::default(), [0usize; ADDRESSES]);
            let mut added: Vec<Span> = Vec::new();
            let addresses = |span: Span| span.start()..span.end();
            for (start, length, adding) in requests {
                if adding || added.is_empty() {
                    let span = Span::new(start, length.min(ADDRESSES - start)).unwrap();
                    let gaps: Vec<usize> = locked.gaps(span).into_iter().flat_map(addresses).collect();
                    prop_assert_eq!(gaps, addresses(span).filter(|&at| counts[at] == 0).collect::<Vec<_>>());
                    locked.add(span);
                    addresses(span).for_each(|at| counts[at] += 1);
                    added.push(span);
                } else {
                    let span = added.swap_remove(start % added.len());
                    addresses(span).for_each(|at| counts[at] -= 1);
                    let unlocked: Vec<usize> = locked.remove(span).into_iter().flat_map(addresses).collect();
                    prop_assert_eq!(unlocked, addresses(span).filter(|&at| counts[at] == 0).collect::<Vec<_>>());
                }
                // The number of runs is minimal.
                let edges = counts.windows(2).filter(|two| two[1] != 0 && two[0] != two[1]).count();
                prop_assert_eq!(locked.0.len(), edges);
            }
        }
    }
}
