//! Tests of the lease counts and hints of threads.

use super::*;

fn slot(number: u32) -> CacheSlot {
    CacheSlot::new(number)
}

#[test]
fn counts_survive_the_end_of_threads() {
    let counts = LeaseCounts::<u64>::new(3).unwrap();
    // The end of a scope does not wait for the destructors of threads, which give the blocks back.
    let run = |threads: usize, work: &(dyn Fn() + Sync)| {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    };
    run(4, &|| (0..1000).for_each(|_| counts.count(slot(1))));
    run(3, &|| (0..1000).for_each(|_| counts.count_return(slot(1))));
    assert_eq!((counts.leases(slot(0)), counts.leases(slot(1)), counts.leases(slot(2))), (0, 1000, 0));
    assert_eq!(counts.sum(slot(1)), (4000, 3000));
    // Threads one after another share one block.
    (0..50).for_each(|_| run(1, &|| counts.count(slot(2))));
    assert!(counts.blocks().count() <= 4, "{}", counts.blocks().count());
}

#[test]
fn an_exiting_thread_still_counts() {
    struct Last(Arc<LeaseCounts<u64>>);
    impl Drop for Last {
        fn drop(&mut self) {
            self.0.count(slot(0));
        }
    }
    std::thread_local! {
        static BEFORE: RefCell<Option<Last>> = const { RefCell::new(None) };
        static BEHIND: RefCell<Option<Last>> = const { RefCell::new(None) };
    }
    let counts = Arc::new(LeaseCounts::<u64>::new(1).unwrap());
    for _ in 0..4 {
        let counts = counts.clone();
        // One of them ends when the thread has its counts, the other when it has none any more,
        // whichever the order is.
        let thread = std::thread::spawn(move || {
            BEFORE.set(Some(Last(counts.clone())));
            counts.count(slot(0));
            BEHIND.set(Some(Last(counts.clone())));
        });
        thread.join().unwrap();
    }
    assert_eq!(counts.leases(slot(0)), 12);
    assert!(counts.shared_count(slot(0)).0.load(Ordering::Relaxed) > 0, "some threads had no counters");
    assert_eq!(counts.blocks().count(), 1);
}

#[test]
fn both_halves_of_a_counter_wrap_independently() {
    let counts = LeaseCounts::<u64>::new(1).unwrap();
    counts.of_thread().unwrap().counter(slot(0)).store(0xffff_fffe | 0xffff_fff0 << 32, Ordering::Relaxed);
    assert_eq!(counts.leases(slot(0)), 14);
    counts.count(slot(0));
    counts.count(slot(0));
    assert_eq!((counts.leases(slot(0)), counts.sum(slot(0))), (16, (0, 0xffff_fff0)));
    counts.uncount(slot(0));
    assert_eq!((counts.leases(slot(0)), counts.sum(slot(0))), (15, (0xffff_ffff, 0xffff_fff0)));
    counts.count(slot(0));
    (0..16).for_each(|_| counts.count_return(slot(0)));
    assert_eq!((counts.leases(slot(0)), counts.sum(slot(0))), (0, (0, 0)));
}

#[test]
fn several_caches_in_one_thread_have_separate_counts() {
    let (a, b) = (LeaseCounts::<u64>::new(1).unwrap(), LeaseCounts::<u64>::new(1).unwrap());
    for _ in 0..10 {
        a.count(slot(0));
        b.count(slot(0));
        b.count_return(slot(0));
    }
    assert_eq!((a.leases(slot(0)), b.leases(slot(0))), (10, 0));
    drop(a);
    let c = LeaseCounts::<u64>::new(1).unwrap();
    c.count(slot(0));
    assert_eq!((b.leases(slot(0)), c.leases(slot(0))), (0, 1));
}

#[test]
fn a_promoted_page_has_a_primary_hint() {
    let counts = LeaseCounts::<u64>::new(1).unwrap();
    let own = counts.of_thread().unwrap();
    assert!(own.primary_hint(7).is_none());
    own.promote_hint(7, Hint { slot: slot(0), version: 3, key: 9 }, |_, _| false);
    let found = own.primary_hint(7).expect("it was refreshed").hint;
    assert_eq!((found.slot, found.version, found.key), (slot(0), 3, 9));
}
