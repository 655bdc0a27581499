//! Tests of the leak check that the RDMA test programs use, on rounds that are known to leak or not
//! to leak.

use std::fs::File;
use std::hint::black_box;

use crate::checks::check_leaks_in;

#[test]
fn a_small_object_in_every_round_is_reported_as_a_leak() {
    for (rounds, bytes) in [(2000, 48), (120, 400)] {
        let why = check_leaks_in(rounds, || {
            std::mem::forget(black_box(vec![0u8; bytes]));
            Ok(())
        });
        let wanted = format!("the heap grows: {rounds} rounds");
        assert!(why.as_ref().is_err_and(|why| why.starts_with(&wanted)), "{why:?}");
    }
}

#[test]
fn a_descriptor_that_stays_open_is_reported_as_a_leak() {
    let mut rounds = 0;
    let why = check_leaks_in(120, || {
        rounds += 1;
        if rounds == 90 {
            std::mem::forget(File::open("/dev/null").map_err(|error| error.to_string())?);
        }
        Ok(())
    });
    assert!(why.as_ref().is_err_and(|why| why.starts_with("descriptors or pinned bytes differ")), "{why:?}");
}

#[test]
fn a_filling_cache_is_not_reported_as_a_leak() {
    let mut cache = Vec::new();
    let mut rounds = 0;
    let seen = check_leaks_in(120, || {
        rounds += 1;
        // As many bytes as all rounds of a leak would allocate.
        if rounds <= 60 {
            cache.push(vec![0u8; 100_000]);
        }
        drop(black_box(vec![0u8; 1_000_000]));
        Ok(())
    });
    assert!(seen.is_ok(), "{seen:?}");
}
