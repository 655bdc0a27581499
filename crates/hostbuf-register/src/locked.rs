//! Which memory is locked, and how often.

use std::collections::BTreeMap;

use crate::span::Span;

/// Memory that is locked at least once, in runs that are locked equally often: by the start of each
/// its end, and how often. No two have a byte in common, and neighbours differ. So all that is done
/// here takes time by the number of runs, whatever their length.
#[derive(Debug, Default)]
pub(super) struct Locked(BTreeMap<usize, (usize, usize)>);

fn between(start: usize, end: usize) -> Option<Span> {
    if start < end { Span::new(start, end - start).ok() } else { None }
}

impl Locked {
    /// What of `span` is not locked.
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

    /// All of `span` is locked once more.
    pub(super) fn add(&mut self, span: Span) {
        for gap in self.gaps(span) {
            self.0.insert(gap.start(), (gap.end(), 0));
        }
        self.cut(span);
        for (_, (_, times)) in self.0.range_mut(span.start()..span.end()) {
            *times += 1;
        }
        self.join(span);
    }

    /// All of `span` is locked once less. What of it is locked no more.
    pub(super) fn remove(&mut self, span: Span) -> Vec<Span> {
        self.cut(span);
        let mut ended = Vec::new();
        for (&start, (end, times)) in self.0.range_mut(span.start()..span.end()) {
            *times -= 1;
            if *times == 0 {
                ended.extend(between(start, *end));
            }
        }
        for run in &ended {
            self.0.remove(&run.start());
        }
        self.join(span);
        ended
    }

    /// No run goes over an edge of `span` any more.
    fn cut(&mut self, span: Span) {
        for at in [span.start(), span.end()] {
            let over = self.0.range_mut(..at).next_back().filter(|(_, (end, _))| *end > at);
            if let Some((_, (end, times))) = over {
                let behind = (*end, *times);
                *end = at;
                self.0.insert(at, behind);
            }
        }
    }

    /// Makes one of neighbours that do not differ: in `span`, and at its edges.
    fn join(&mut self, span: Span) {
        let first = self.0.range(..span.start()).next_back().map_or(span.start(), |(&start, _)| start);
        let starts: Vec<usize> = self.0.range(first..=span.end()).map(|(&start, _)| start).collect();
        let mut into = first;
        for start in starts {
            let (end, times) = self.0[&start];
            match self.0.get_mut(&into) {
                Some(before) if into != start && *before == (start, times) => {
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

    const PLACES: usize = 40;

    proptest! {
        /// Beside a count for each place.
        #[test]
        fn runs_are_what_counts_would_be(asked in prop::collection::vec((1..PLACES, 1..PLACES, any::<bool>()), 1..60)) {
            let (mut locked, mut counts) = (Locked::default(), [0usize; PLACES]);
            let mut held: Vec<Span> = Vec::new();
            let places = |span: Span| span.start()..span.end();
            for (start, length, adding) in asked {
                if adding || held.is_empty() {
                    let span = Span::new(start, length.min(PLACES - start)).unwrap();
                    let gaps: Vec<usize> = locked.gaps(span).into_iter().flat_map(places).collect();
                    prop_assert_eq!(gaps, places(span).filter(|&at| counts[at] == 0).collect::<Vec<_>>());
                    locked.add(span);
                    places(span).for_each(|at| counts[at] += 1);
                    held.push(span);
                } else {
                    let span = held.swap_remove(start % held.len());
                    places(span).for_each(|at| counts[at] -= 1);
                    let ended: Vec<usize> = locked.remove(span).into_iter().flat_map(places).collect();
                    prop_assert_eq!(ended, places(span).filter(|&at| counts[at] == 0).collect::<Vec<_>>());
                }
                // As few runs as there can be.
                let edges = counts.windows(2).filter(|two| two[1] != 0 && two[0] != two[1]).count();
                prop_assert_eq!(locked.0.len(), edges);
            }
        }
    }
}
