//! Clients that break the rules of a pool. scripts/test-long runs more rounds of each kind.

use crate::deaths::rounds;

#[test]
fn changed_tables_and_rows_harm_nobody_but_their_segment() {
    rounds("flipped", 20);
}

#[test]
fn a_broker_ends_connections_with_garbage_and_keeps_no_descriptor() {
    rounds("garbage", 300);
}

#[test]
fn very_many_connections_leave_nothing_in_a_broker() {
    rounds("crowd", 2000);
}

#[test]
fn a_reader_that_writes_to_its_block_changes_nothing() {
    rounds("trespass", 200);
}
