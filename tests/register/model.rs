//! Random sequences of all operations of a cache, against a naive model: a list of leases, and one
//! of invalidated registrations. The policy chooses the registration to evict, so the model checks
//! the invariants for every choice.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hostbuf::register::testing::fake::{Fake, Stamp};
use hostbuf::register::{Access, Budget, Lease, MonitorMode, Overlap, RegistrationCache, Span};
use hostbuf::register::{Error, Result};
use proptest::prelude::*;

use crate::memory::PAGE;
use crate::{Stamped, at, span};

const BASE: usize = 0x100_0000;
const RIGHTS: [Access; 4] = [Access::READ, Access::WRITE, Access::REMOTE_READ, Access::REMOTE_WRITE];

#[derive(Clone, Copy, Debug)]
enum Step {
    Get(RequestedRange),
    TryGet(RequestedRange),
    GetNow(RequestedRange),
    GetMany([RequestedRange; 3], usize),
    /// Drops one of the leases.
    Drop(usize),
    DropAll,
    Invalidate(RequestedRange),
    Flush,
    /// Makes the device refuse the next registrations, as many as this number.
    Fail(usize, i32),
}

#[derive(Clone, Copy, Debug)]
struct RequestedRange {
    offset: usize,
    length: usize,
    access: Access,
}

impl RequestedRange {
    fn span(self) -> Span {
        span(BASE + self.offset, self.length)
    }
}

fn asked() -> impl Strategy<Value = RequestedRange> {
    let length = prop_oneof![6 => 1..=2 * PAGE, 1 => 1..=9 * PAGE, 3 => Just(PAGE)];
    let offset = prop_oneof![(0..16usize).prop_map(|page| page * PAGE), 0..16 * PAGE];
    (offset, length, 0..RIGHTS.len()).prop_map(|(offset, length, rights)| {
        let access = RIGHTS[rights];
        RequestedRange { offset, length, access }
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => asked().prop_map(Step::Get),
        2 => asked().prop_map(Step::TryGet),
        2 => asked().prop_map(Step::GetNow),
        2 => ([asked(), asked(), asked()], 0..4usize).prop_map(|(all, n)| Step::GetMany(all, n)),
        6 => any::<usize>().prop_map(Step::Drop),
        1 => Just(Step::DropAll),
        2 => asked().prop_map(Step::Invalidate),
        1 => Just(Step::Flush),
        1 => (1..3usize, prop_oneof![Just(libc::EIO), Just(libc::ENOMEM)]).prop_map(|(n, errno)| Step::Fail(n, errno)),
    ]
}

/// The expected state of the cache, in the simplest form.
struct Model<'c> {
    fake: &'c Fake,
    cache: &'c RegistrationCache<Fake>,
    budget: Budget,
    leases: Vec<(Lease<'c, Fake>, RequestedRange)>,
    /// The numbers of registrations that no new lease may have.
    invalid: BTreeSet<u64>,
    /// The number of leases taken, including those of a get_many that failed.
    taken: u64,
    /// The number of calls that failed for lack of budget.
    over_budget: u64,
}

impl<'c> Model<'c> {
    fn step(&mut self, step: Step) {
        match step {
            Step::Get(asked) => {
                let result = self.cache.get(at(asked.span().start()), asked.length, asked.access);
                self.single(asked, result);
            }
            Step::GetNow(asked) => {
                let start = at(asked.span().start());
                let result = self.cache.get_timeout(start, asked.length, asked.access, Duration::ZERO);
                self.single(asked, result);
            }
            Step::TryGet(asked) => {
                let made = self.fake.made();
                let covered = self.covers(asked);
                let lease = self.cache.try_get(at(asked.span().start()), asked.length, asked.access);
                // No other thread is active, so the request hits if and only if a registration
                // covers it.
                assert_eq!(lease.is_some(), covered, "{asked:?}");
                assert_eq!(self.fake.made(), made);
                if let Some(lease) = lease {
                    self.given(asked, lease);
                }
            }
            Step::GetMany(all, n) => {
                let all = all.map(|one| RequestedRange { access: all[0].access, ..one });
                let spans: Vec<Span> = all[..n].iter().map(|one| one.span()).collect();
                let before = self.stats_leases();
                match self.cache.get_many(&spans, all[0].access) {
                    Ok(leases) => {
                        assert_eq!(leases.len(), n);
                        for (lease, asked) in leases.into_iter().zip(all) {
                            self.given(asked, lease);
                        }
                    }
                    Err(error) => {
                        // get_many drops the leases that it had taken, and they count as taken.
                        let some = self.stats_leases() - before;
                        assert!((some as usize) < n, "{some} of {n}");
                        self.taken += some;
                        self.refused(&error, some as usize);
                    }
                }
            }
            Step::Drop(which) => {
                if !self.leases.is_empty() {
                    let which = which % self.leases.len();
                    drop(self.leases.swap_remove(which));
                }
            }
            Step::DropAll => self.leases.clear(),
            Step::Invalidate(asked) => {
                self.invalidate(asked.span());
                self.cache.invalidate(asked.span()).expect("the fake ends everything");
                // The registrations without leases have ended by now.
                let leased = self.leased();
                for (number, other, _) in self.fake.live() {
                    assert!(!other.overlaps(asked.span()) || leased.contains(&number), "{other} is kept");
                }
            }
            Step::Flush => {
                self.invalidate(span(1, usize::MAX - 1));
                self.cache.flush().expect("the fake ends everything");
                assert_eq!(
                    self.fake.live().into_iter().map(|live| live.0).collect::<BTreeSet<_>>(),
                    self.leased()
                );
            }
            Step::Fail(calls, errno) => self.fake.fail(calls, errno),
        }
        self.check();
    }

    fn stats_leases(&self) -> u64 {
        let stats = self.cache.stats();
        stats.hits + stats.misses + stats.coalesced
    }

    fn leased(&self) -> BTreeSet<u64> {
        self.leases.iter().map(|(lease, _)| lease.stamp().0).collect()
    }

    /// Returns true if a live registration that was not invalidated covers the request.
    fn covers(&self, asked: RequestedRange) -> bool {
        self.fake.live().into_iter().any(|(number, span, access)| {
            span.contains(asked.span()) && access.allows(asked.access) && !self.invalid.contains(&number)
        })
    }

    fn invalidate(&mut self, span: Span) {
        let gone = self.fake.live().into_iter().filter(|(_, other, _)| other.overlaps(span));
        self.invalid.extend(gone.map(|live| live.0));
    }

    /// Checks the result of a request for one range: a lease of an existing or new registration, or
    /// an error with a true reason.
    fn single(&mut self, asked: RequestedRange, result: Result<Lease<'c, Fake>>) {
        match result {
            Ok(lease) => self.given(asked, lease),
            Err(error) => self.refused(&error, 0),
        }
    }

    fn given(&mut self, asked: RequestedRange, lease: Lease<'c, Fake>) {
        let Stamp(number) = lease.stamp();
        let of = self.fake.live().into_iter().find(|live| live.0 == number);
        let (_, whole, access) = of.expect("a lease has a live registration");
        assert_eq!((lease.span(), lease.access()), (whole, access));
        assert!(whole.contains(asked.span()) && access.allows(asked.access), "{lease:?} for {asked:?}");
        assert!(!self.invalid.contains(&number), "{lease:?} was made invalid before");
        self.taken += 1;
        self.leases.push((lease, asked));
    }

    /// Checks the reason of an error. `own` is the number of leases that the request itself holds.
    fn refused(&mut self, error: &Error, own: usize) {
        let leased_now = self.leases.len() + own > 0;
        match error {
            Error::Budget { leased, registrations, bytes, .. } => {
                self.over_budget += 1;
                assert!(registrations.0 <= registrations.1 && bytes.0 <= bytes.1);
                // Leases take up the budget, or the request alone exceeds it.
                assert!(!leased || leased_now, "{error}");
            }
            Error::Registration { source: Some(source), .. } => {
                assert!([Some(libc::EIO), Some(libc::ENOMEM)].contains(&source.raw_os_error()), "{error}");
            }
            Error::Registration { why, .. } => {
                assert!(why.contains("overlapping") && leased_now, "{error}");
            }
            other => panic!("{other}"),
        }
    }

    /// Checks the invariants that hold after each step.
    fn check(&self) {
        // The cache's own thread may still be ending registrations that were invalidated and are no
        // longer leased.
        let leased = self.leased();
        let stays = |number: &u64| !self.invalid.contains(number) || leased.contains(number);
        let seen = loop {
            let seen = (self.fake.live(), self.cache.stats());
            if seen.0.iter().all(|(number, ..)| stays(number)) && seen.0.len() == seen.1.registrations {
                break seen;
            }
            std::thread::yield_now();
        };
        let (live, stats) = seen;
        let numbers: BTreeSet<u64> = live.iter().map(|live| live.0).collect();
        for (lease, asked) in &self.leases {
            assert!(numbers.contains(&lease.stamp().0), "{lease:?} is of one that has ended");
            assert!(lease.span().contains(asked.span()) && lease.access().allows(asked.access));
        }
        // No registration ends twice, and an invalidated one lives only as long as its leases.
        let ended: Vec<u64> = self.fake.ended();
        assert_eq!(ended.iter().collect::<BTreeSet<_>>().len(), ended.len());
        assert_eq!(self.fake.made(), ended.len() + live.len());
        assert!(numbers.intersection(&self.invalid).all(|number| self.leased().contains(number)));
        // The counters agree with the device.
        let bytes: usize = live.iter().map(|live| live.1.len()).sum();
        assert_eq!((stats.registrations, stats.bytes), (live.len(), bytes));
        assert_eq!(stats.hits + stats.misses + stats.coalesced, self.taken);
        assert_eq!(stats.misses, self.fake.made() as u64);
        assert_eq!(stats.registered_bytes, self.fake.made_bytes() as u64);
        assert_eq!((stats.coalesced, stats.retried, stats.leaked, stats.waiting), (0, 0, 0, 0));
        assert_eq!(stats.over_budget, self.over_budget);
        assert_eq!((stats.evictions + stats.invalidated) as usize, ended.len() + self.leased_invalid());
        let peak = self.fake.peak();
        assert!(peak.0 <= self.budget.registrations && peak.1 <= self.budget.bytes, "{peak:?}");
        assert_eq!((stats.peak_registrations, stats.peak_bytes), peak);
    }

    /// Counts the invalidated registrations that are still leased.
    fn leased_invalid(&self) -> usize {
        self.leased().intersection(&self.invalid).count()
    }
}

fn run(overlap: Overlap, budget: Budget, steps: &[Step]) {
    let fake = Arc::new(Fake::new(overlap));
    let cache =
        RegistrationCache::new(fake.clone(), budget, MonitorMode::Explicit).expect("a budget with room");
    let mut model = Model {
        fake: &fake,
        cache: &cache,
        budget,
        leases: Vec::new(),
        invalid: BTreeSet::new(),
        taken: 0,
        over_budget: 0,
    };
    for &step in steps {
        model.step(step);
    }
    drop(model);
    drop(cache);
    assert_eq!(fake.live(), []);
    assert_eq!(fake.ended().len(), fake.made());
}

/// Runs the steps with a budget for everything. Only invalidated registrations end, so the model
/// predicts each answer.
fn run_with_room(overlap: Overlap, steps: &[Step]) {
    let fake = Arc::new(Fake::new(overlap));
    let budget = Budget::new(1000).bytes(usize::MAX / 2);
    let cache =
        RegistrationCache::new(fake.clone(), budget, MonitorMode::Explicit).expect("a budget with room");
    // The valid registrations: number, range, rights.
    let valid: RefCell<Vec<(u64, Span, Access)>> = RefCell::default();
    let mut hits = 0;
    let mut get = |asked: RequestedRange| {
        let mut valid = valid.borrow_mut();
        let covers = |(_, span, access): &(u64, Span, Access)| {
            span.contains(asked.span()) && access.allows(asked.access)
        };
        let expected: Vec<u64> = valid.iter().filter(|v| covers(v)).map(|v| v.0).collect();
        let lease = cache.get(at(asked.span().start()), asked.length, asked.access).expect("there is room");
        let Stamp(number) = lease.stamp();
        if expected.is_empty() {
            if overlap == Overlap::Refused {
                // The cache ends overlapping registrations first: none is leased here.
                valid.retain(|(_, span, _)| !span.overlaps(asked.span()));
            }
            assert_eq!(
                (number, lease.span(), lease.access()),
                (fake.made() as u64, asked.span(), asked.access)
            );
            valid.push((number, asked.span(), asked.access));
        } else {
            assert!(expected.contains(&number), "{lease:?}, not one of {expected:?}");
            hits += 1;
        }
    };
    for &step in steps {
        match step {
            Step::Get(asked) | Step::TryGet(asked) | Step::GetNow(asked) => get(asked),
            Step::GetMany(all, n) => all[..n].iter().for_each(|&asked| get(asked)),
            Step::Invalidate(asked) => {
                cache.invalidate(asked.span()).unwrap();
                valid.borrow_mut().retain(|(_, span, _)| !span.overlaps(asked.span()));
            }
            Step::Flush => {
                cache.flush().unwrap();
                valid.borrow_mut().clear();
            }
            Step::Drop(_) | Step::DropAll | Step::Fail(..) => {}
        }
        let mut expected = valid.borrow().clone();
        expected.sort_by_key(|v| v.0);
        assert_eq!(fake.live(), expected);
    }
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses), (hits, fake.made() as u64));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_agree_with_the_model(
        steps in proptest::collection::vec(step(), 1..120),
        registrations in 1..6usize,
        pages in 1..12usize,
        overlaps in any::<bool>(),
    ) {
        let overlap = if overlaps { Overlap::Free } else { Overlap::Refused };
        run(overlap, Budget::new(registrations).bytes(pages * PAGE), &steps);
    }

    #[test]
    fn with_a_large_budget_every_result_is_predicted(
        steps in proptest::collection::vec(step(), 1..120),
        overlaps in any::<bool>(),
    ) {
        run_with_room(if overlaps { Overlap::Free } else { Overlap::Refused }, &steps);
    }
}
