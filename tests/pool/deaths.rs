//! Clients and brokers that are killed or stopped at random instants. scripts/test-long runs more
//! rounds of each kind.

use std::process::Command;

use hostbuf_tests::program;

/// Runs rounds of one kind, and prints what the program reports.
pub(crate) fn rounds(kind: &str, rounds: u32) {
    let output = Command::new(program("pool_faults")).args([kind, &rounds.to_string()]).output();
    let output = output.expect("the program starts");
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_killed_reader_keeps_no_block() {
    rounds("reader", 500);
}

#[test]
fn clients_that_are_killed_between_two_accesses_keep_nothing() {
    rounds("tight", 200);
}

#[test]
fn a_stopped_reader_keeps_at_most_its_quota() {
    rounds("stopped-reader", 200);
}

#[test]
fn a_killed_producer_keeps_no_memory_and_publishes_no_torn_frame() {
    rounds("producer", 300);
}

#[test]
fn a_killed_broker_interrupts_nobody_and_its_successor_knows_all_memory() {
    rounds("broker", 200);
}

#[test]
fn nothing_is_left_of_clients_that_end_with_their_broker() {
    rounds("all", 200);
}

#[test]
fn a_grant_on_its_way_from_a_killed_broker_counts() {
    rounds("granted", 200);
}

#[test]
fn a_successor_grants_nothing_before_a_stopped_client_goes_on() {
    rounds("awaited", 2);
}

#[test]
fn a_mirror_delivers_whole_frames_through_deaths_on_both_sides() {
    rounds("mirror", 300);
}

#[test]
fn clients_that_ask_at_once_never_exceed_the_limit() {
    rounds("limit", 20);
}

#[test]
fn processes_that_are_stopped_hold_nobody_up_and_go_on() {
    rounds("paused", 300);
}

#[test]
fn forked_children_of_killed_clients_keep_nothing() {
    rounds("forked", 200);
}
