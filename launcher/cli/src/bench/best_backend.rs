//! The backend that is best in a state of the page cache.

use hostbuf_staging::Backend;

use super::bench_row::{BenchRow, PageCacheState};

/// The share of the best rate that counts as equally good.
const AS_GOOD: f64 = 0.9;

/// The backend that is best in one state of the page cache, to one destination.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BestBackend {
    /// The name of the destination.
    pub(super) to: String,
    pub(super) cache: PageCacheState,
    /// The fastest backend, which is not [`Backend::Auto`].
    pub(super) backend: Backend,
    /// Its rate in bytes a second.
    pub(super) rate: f64,
    /// The rate of `auto` in bytes a second.
    pub(super) auto_rate: f64,
    /// The backend that `auto` has selected, unless it has selected several or one without a row.
    selected: Option<Backend>,
    /// The rate with which the best one is compared: that of the row of the selected backend, or
    /// of `auto`.
    selected_rate: f64,
    /// True if `auto` has selected the fastest backend, or one that is about as fast.
    pub(super) auto_suffices: bool,
}

impl BestBackend {
    /// Compares the rows of all destinations and states that were measured.
    pub(super) fn of_all(rows: &[BenchRow]) -> Vec<BestBackend> {
        let mut groups: Vec<Vec<&BenchRow>> = Vec::new();
        for row in rows {
            match groups.iter_mut().find(|group| group[0].to == row.to && group[0].cache == row.cache) {
                Some(group) => group.push(row),
                None => groups.push(vec![row]),
            }
        }
        groups.iter().filter_map(|group| BestBackend::of(group)).collect()
    }

    /// Compares the backends. `None` if none was measured.
    fn of(rows: &[&BenchRow]) -> Option<BestBackend> {
        let rate = |row: &BenchRow| row.median().map(|sample| sample.rate());
        let measured = rows.iter().filter_map(|row| Some((*row, rate(row)?)));
        let (automatic, requested): (Vec<_>, Vec<_>) =
            measured.partition(|(row, _)| row.backend == Backend::Auto);
        let &(best, rate) = requested.iter().max_by(|(_, a), (_, b)| a.total_cmp(b))?;
        let &(auto, auto_rate) = automatic.first()?;
        // A request for the backend that `auto` has selected reads by the same code, so the two
        // rows differ by noise only.
        let row_of_selected = selected(auto).and_then(|selected| {
            requested.iter().find_map(|&(row, rate)| (row.backend == selected).then_some((selected, rate)))
        });
        let (selected, selected_rate) =
            row_of_selected.map_or((None, auto_rate), |(selected, rate)| (Some(selected), rate));
        let auto_suffices = selected_rate >= AS_GOOD * rate;
        let (to, cache, backend) = (best.to.clone(), best.cache, best.backend);
        Some(BestBackend { to, cache, backend, rate, auto_rate, selected, selected_rate, auto_suffices })
    }

    /// Returns a line for each destination, which names its best backends and what to request.
    pub(super) fn lines(all: &[BestBackend]) -> String {
        let mut destinations: Vec<&str> = all.iter().map(|one| one.to.as_str()).collect();
        destinations.dedup();
        let line = |to: &&str| {
            let of_it: Vec<&BestBackend> = all.iter().filter(|one| one.to == *to).collect();
            let best = |one: &&BestBackend| {
                format!("{} with a {} page cache ({:.2} GB/s)", one.backend, one.cache, one.rate / 1e9)
            };
            let best = of_it.iter().map(best).collect::<Vec<_>>().join(", ");
            let slow: Vec<String> = of_it.iter().filter_map(|one| one.advice()).collect();
            let advice =
                if slow.is_empty() { "keep the default, auto".to_owned() } else { slow.join(" and ") };
            format!("best to {to}: {best}; {advice}\n")
        };
        destinations.iter().map(line).collect()
    }

    /// Returns what to request instead of `auto`, unless that suffices.
    fn advice(&self) -> Option<String> {
        let slower = (1.0 - self.selected_rate / self.rate) * 100.0;
        let BestBackend { cache, backend, selected, auto_suffices, .. } = self;
        let auto = match selected {
            Some(selected) => format!("auto selects {selected}, which is"),
            None => "auto is".to_owned(),
        };
        (!auto_suffices)
            .then(|| format!("request {backend} for a {cache} page cache, where {auto} {slower:.0} % slower"))
    }
}

/// Returns the backend that `auto` has selected for all files. `None` if it has selected several.
fn selected(auto: &BenchRow) -> Option<Backend> {
    let first = auto.choices.first()?.backend;
    auto.choices.iter().all(|choice| choice.backend == first).then_some(first)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hostbuf_staging::RingCounters;

    use super::super::bench_sample::BenchSample;
    use super::*;

    /// Makes a row that has read 1 GB in some milliseconds, or none if it was refused.
    fn row(cache: PageCacheState, backend: Backend, milliseconds: Option<u64>) -> BenchRow {
        let mut row = BenchRow::new("the host".to_owned(), cache, backend);
        row.samples.extend(milliseconds.map(|milliseconds| BenchSample {
            bytes: 1_000_000_000,
            elapsed: Duration::from_millis(milliseconds),
            cpu: Duration::ZERO,
            counters: RingCounters::default(),
            needs_disk: false,
        }));
        row
    }

    #[test]
    fn the_fastest_requested_backend_is_best() {
        use Backend::{Auto, Direct, Mmap, Posix};
        use PageCacheState::{Cold, Warm};
        let rows = [
            row(Cold, Posix, Some(1000)),
            row(Cold, Direct, Some(500)),
            row(Cold, Mmap, None),
            row(Cold, Auto, Some(499)),
            row(Warm, Posix, Some(100)),
            row(Warm, Direct, Some(500)),
            row(Warm, Auto, Some(105)),
        ];
        let best = BestBackend::of_all(&rows);
        let found: Vec<_> = best.iter().map(|one| (one.cache, one.backend, one.auto_suffices)).collect();
        assert_eq!(found, [(Cold, Direct, true), (Warm, Posix, true)]);
        let line = BestBackend::lines(&best);
        assert_eq!(
            line,
            "best to the host: direct with a cold page cache (2.00 GB/s), posix with a warm page cache (10.00 GB/s); \
             keep the default, auto\n"
        );
    }

    /// Makes the row of `auto`, which has selected these backends.
    fn auto_row(cache: PageCacheState, milliseconds: u64, selected: &[Backend]) -> BenchRow {
        let file = hostbuf_staging::FileOptions::new().backend(Backend::Posix).open("/proc/self/exe");
        let choice = file.expect("a test is a file").backend();
        let choice = |&backend: &Backend| {
            let mut choice = choice.clone();
            choice.backend = backend;
            choice
        };
        let choices = selected.iter().map(choice).collect();
        BenchRow { choices, ..row(cache, Backend::Auto, Some(milliseconds)) }
    }

    #[test]
    fn a_slow_automatic_choice_is_named() {
        use Backend::{Direct, Posix, Uring};
        let cold = PageCacheState::Cold;
        let requested =
            [(Direct, 500), (Posix, 1000)].map(|(backend, took)| row(cold, backend, Some(took))).to_vec();
        let line = |auto: BenchRow| {
            BestBackend::lines(&BestBackend::of_all(&[requested.clone(), vec![auto]].concat()))
        };
        let named = line(auto_row(cold, 900, &[Posix]));
        let expected =
            "; request direct for a cold page cache, where auto selects posix, which is 50 % slower\n";
        assert!(named.ends_with(expected), "{named}");
        // It has selected several backends, or one that was not measured.
        for selected in [&[Posix, Direct][..], &[Uring]] {
            let named = line(auto_row(cold, 1000, selected));
            let expected = "; request direct for a cold page cache, where auto is 50 % slower\n";
            assert!(named.ends_with(expected), "{named}");
        }
        assert_eq!(BestBackend::of_all(&[row(PageCacheState::Warm, Backend::Mmap, None)]), []);
    }

    #[test]
    fn the_noise_of_the_automatic_row_causes_no_advice() {
        use Backend::{Direct, Posix, Uring};
        let cold = PageCacheState::Cold;
        for (selected, milliseconds) in [(Direct, 1000), (Uring, 1000), (Direct, 499)] {
            let rows = [
                row(cold, Posix, Some(2000)),
                row(cold, Direct, Some(500)),
                row(cold, Uring, Some(520)),
                auto_row(cold, milliseconds, &[selected]),
            ];
            let best = BestBackend::of_all(&rows);
            assert!(best[0].auto_suffices, "{selected}: {best:?}");
            assert!(BestBackend::lines(&best).ends_with("; keep the default, auto\n"), "{best:?}");
        }
        // A fast row of `auto` does not hide that it has selected a slow backend.
        let rows =
            [row(cold, Posix, Some(2000)), row(cold, Direct, Some(500)), auto_row(cold, 500, &[Posix])];
        assert!(!BestBackend::of_all(&rows)[0].auto_suffices);
    }
}
