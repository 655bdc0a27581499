//! The group of a host's ranks (`job::Local`): made repeatedly, left early, and never made by a
//! rank.

use std::time::Duration;

use hostbuf_os::Received;
use hostbuf_os::session::Session;
use hostbuf_protocol::message::{Hello, Message, Role};

use crate::running_job::{ARRIVAL, RunningJob, probe};
use hostbuf_tests::{CommandOutput, Scratch, eventually, local};

/// Runs `ranks` ranks of `member_rounds` with the step `what`, and returns the line of each.
#[track_caller]
fn lines(ranks: usize, what: &str) -> Vec<String> {
    let dir = Scratch::new(&format!("members-{what}"));
    let program = hostbuf_tests::program("member_rounds");
    let program = program.to_str().expect("the repository's path is UTF-8");
    let folder = dir.0.to_str().expect("UTF-8");
    let outcome: CommandOutput =
        local(ranks, "1M", &["--quiet"], &["timeout", "60", program, what, folder]).ok();
    (0..ranks)
        .map(|rank| {
            let line = outcome.lines(&format!("rank {rank}: "));
            let [line] = &line[..] else { panic!("rank {rank}: {outcome:?}") };
            line.clone()
        })
        .collect()
}

/// Asserts that the parts of a line, which are results of gathers, are as expected: `Ok` with the
/// numbers, or `Err` with a part of the error.
#[track_caller]
fn assert_results(line: &str, expected: &[Result<&str, &str>]) {
    let found: Vec<&str> = line.split("; ").collect();
    assert_eq!(found.len(), expected.len(), "{line}");
    for (found, expected) in found.into_iter().zip(expected) {
        match expected {
            Ok(numbers) => assert_eq!(found, *numbers, "{line}"),
            Err(part) => assert!(found.contains("gather failed") && found.contains(part), "{line}"),
        }
    }
}

#[test]
fn ranks_make_their_group_repeatedly() {
    assert_eq!(lines(2, "repeated"), ["20 rounds", "20 rounds"]);
}

#[test]
fn a_rank_that_makes_the_group_after_another_has_left_gets_an_error() {
    let lines = lines(2, "late");
    assert_results(&lines[0], &[Ok("[10, 11]")]);
    assert_results(&lines[1], &[Err("local rank 0 has left the group"), Ok("[10, 11]")]);
}

#[test]
fn operations_of_a_left_group_fail_and_do_not_change_the_next_group() {
    let lines = lines(3, "refused");
    let left = Err("local rank 2 has left the group");
    for line in &lines[..2] {
        assert_results(line, &[Ok("[0, 1, 2]"), left, left, Ok("[30, 31, 32]")]);
    }
    assert_results(&lines[2], &[Ok("[0, 1, 2]"), Ok("[30, 31, 32]")]);
}

#[test]
fn a_part_of_the_group_works_after_another_rank_has_left() {
    let lines = lines(3, "split");
    for line in &lines[..2] {
        assert_results(line, &[Ok("[0, 1]"), Err("local rank 2 has left the group"), Ok("[10, 11]")]);
    }
    assert_eq!(lines[2], "left");
}

#[test]
fn a_rank_that_ends_without_the_group_fails_the_operations_of_the_others() {
    let lines = lines(2, "absent");
    assert_results(&lines[0], &[Err("local rank 1 has ended")]);
}

/// Joins as a member of a host with two ranks, without the library.
fn member(job: &RunningJob, local_rank: u64) -> Session {
    let hello = Hello { local_rank, local_size: 2, ..Hello::of(Role::Member) };
    Session::open(&job.socket, None, &Message::Hello { hello, command: b"" }).expect("the agent listens")
}

fn send_part(member: &Session, group: u64, part: &[u8]) {
    let gather = Message::Gather { sequence: 0, group, size: 2, part };
    member.connection().send(&gather, &[]).expect("the agent reads");
}

#[test]
fn a_part_of_an_abandoned_operation_is_not_used() {
    let job = RunningJob::start("abandoned", "size=1M", &["-n", "1"], &[&probe(), "stay", "DIR"], |_, _| {});
    eventually("the rank runs", ARRIVAL, || job.dir.has("stay.0"));
    let (first, second) = (member(&job, 0), member(&job, 1));
    send_part(&first, 7, b"abandoned");
    send_part(&first, 8, b"first");
    // The agent reads the connections in any order, so the member waits for an answer in between.
    send_part(&first, 9, b"first");
    send_part(&second, 9, b"second");
    for _ in 0..2 {
        first.first_answer(Duration::from_secs(10)).expect("operation 9 is complete");
        second.first_answer(Duration::from_secs(10)).expect("operation 9 is complete");
    }
    send_part(&second, 7, b"second");
    send_part(&second, 10, b"second");
    send_part(&first, 10, b"first");
    let mut parts = Vec::new();
    while parts.len() < 2 {
        let Ok(Received::Packet(packet)) = second.connection().receive() else { panic!("no answer") };
        match packet.message() {
            Ok(Message::Gathered { group, part, .. }) => parts.push((group, part.to_vec())),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(parts, [(10, b"first".to_vec()), (10, b"second".to_vec())]);
}
