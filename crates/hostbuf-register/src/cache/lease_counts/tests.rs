//! Tests of the leases that threads count and of what they guess.

use super::*;

#[test]
fn counts_survive_the_end_of_threads() {
    let counts = LeaseCounts::<u64>::new(3).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..1000).for_each(|_| counts.take(1)));
        }
    });
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..1000).for_each(|_| counts.give(1)));
        }
    });
    assert_eq!((counts.leases(0), counts.leases(1), counts.leases(2)), (0, 1000, 0));
    assert_eq!(counts.sum(1), (4000, 3000));
    // Threads one after another share one block.
    for _ in 0..50 {
        std::thread::scope(|scope| drop(scope.spawn(|| counts.take(2))));
    }
    assert!(counts.blocks().count() <= 4, "{}", counts.blocks().count());
}

#[test]
fn an_exiting_thread_still_counts() {
    struct Last(Arc<LeaseCounts<u64>>);
    impl Drop for Last {
        fn drop(&mut self) {
            self.0.take(0);
        }
    }
    std::thread_local! {
        static BEFORE: RefCell<Option<Last>> = const { RefCell::new(None) };
        static BEHIND: RefCell<Option<Last>> = const { RefCell::new(None) };
    }
    let counts = Arc::new(LeaseCounts::<u64>::new(1).unwrap());
    for _ in 0..4 {
        let counts = counts.clone();
        // One of them ends when the thread has its counts, the other when it has none any more, whichever the order is.
        let thread = std::thread::spawn(move || {
            BEFORE.set(Some(Last(counts.clone())));
            counts.take(0);
            BEHIND.set(Some(Last(counts.clone())));
        });
        thread.join().unwrap();
    }
    assert_eq!(counts.leases(0), 12);
    assert!(counts.shared_count(0).0.load(Ordering::Relaxed) > 0, "some had none");
    assert_eq!(counts.blocks().count(), 1);
}

#[test]
fn both_halves_of_a_counter_wrap_independently() {
    let counts = LeaseCounts::<u64>::new(1).unwrap();
    counts.own().unwrap().word(0).store(0xffff_fffe | 0xffff_fff0 << 32, Ordering::Relaxed);
    assert_eq!(counts.leases(0), 14);
    counts.take(0);
    counts.take(0);
    assert_eq!((counts.leases(0), counts.sum(0)), (16, (0, 0xffff_fff0)));
    counts.take_back(0);
    assert_eq!((counts.leases(0), counts.sum(0)), (15, (0xffff_ffff, 0xffff_fff0)));
    counts.take(0);
    (0..16).for_each(|_| counts.give(0));
    assert_eq!((counts.leases(0), counts.sum(0)), (0, (0, 0)));
}

#[test]
fn several_caches_in_one_thread_have_separate_counts() {
    let (a, b) = (LeaseCounts::<u64>::new(1).unwrap(), LeaseCounts::<u64>::new(1).unwrap());
    for _ in 0..10 {
        a.take(0);
        b.take(0);
        b.give(0);
    }
    assert_eq!((a.leases(0), b.leases(0)), (10, 0));
    drop(a);
    let c = LeaseCounts::<u64>::new(1).unwrap();
    c.take(0);
    assert_eq!((b.leases(0), c.leases(0)), (0, 1));
}

#[test]
fn a_promoted_page_has_a_primary_hint() {
    let counts = LeaseCounts::<u64>::new(1).unwrap();
    let own = counts.own().unwrap();
    assert!(own.find(7).is_none());
    own.refresh(7, Hint { slot: 0, number: 3, key: 9 }, |_, _| false);
    let found = own.find(7).expect("it was refreshed").hint;
    assert_eq!((found.slot, found.number, found.key), (0, 3, 9));
}
