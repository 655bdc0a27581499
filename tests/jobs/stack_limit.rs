//! A small limit on the stack (`ulimit -s`) of the command, its agent and its programs.

use std::process::Command;

use hostbuf_tests::{CommandOutput, fixture, hostbuf};

/// The limit, below which programs of the C library do not start either.
const LIMIT: &str = "--stack=65536";

/// Runs a command with this limit.
fn limited(words: &[&str]) -> CommandOutput {
    let mut command = Command::new("prlimit");
    CommandOutput::of(command.args([LIMIT, hostbuf().to_str().expect("UTF-8")]).args(words))
}

#[test]
fn a_job_runs_with_a_small_stack() {
    let show = fixture("cc", "show.c", &[]).expect("it compiles");
    let show = show.to_str().expect("UTF-8");
    let run = ["run", "--launcher", "local", "-n", "2", "--size", "1M", "--", show];
    assert_eq!(limited(&run).ok().stdout.lines().count(), 2);
    limited(&["exec", "--size", "1M", "--", show]).ok();
    // The status states the class of an error as usual.
    let outcome = limited(&["run", "--launcher", "local", "--size", "10T", "--", show]);
    assert_eq!(outcome.status, 83, "{outcome:?}");
}

#[test]
fn a_later_image_of_a_rank_gets_the_buffer_with_a_small_stack() {
    let show = fixture("cc", "show.c", &[]).expect("it compiles");
    let show = show.to_str().expect("UTF-8");
    let alone = hostbuf_tests::local(1, "1M", &[], &[show]).ok();
    let later = hostbuf_tests::local(1, "1M", &[], &["prlimit", LIMIT, show]).ok();
    assert_eq!(later.stdout, alone.stdout);
}
