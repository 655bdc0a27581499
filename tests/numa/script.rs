//! Calls that `scripts/numa-vm` refuses, and a machine that cannot have its huge pages.

use std::process::Command;

use hostbuf_tests::{CommandOutput, root};

use crate::machine::script;

#[test]
fn wrong_calls_end_with_status_2() {
    let wrong: [(&[&str], &str); 5] = [
        (&["true"], "usage: scripts/numa-vm --layout LAYOUT"),
        (&["--layout", "two"], "usage: "),
        (&["--layout", "three", "true"], "no layout \"three\": expected two four switches bridges uneven"),
        (&["--layout", "two", "--huge", "1,1,1", "true"], "the layout two has 2 nodes"),
        (&["--layout", "two", "--kernel", "5.10", "true"], "usage: "),
    ];
    for (arguments, why) in wrong {
        let output = CommandOutput::of(Command::new(root().join("scripts/numa-vm")).args(arguments));
        assert_eq!(output.status, 2, "{arguments:?}: {}", output.stderr);
        assert!(output.stderr.contains(why), "{arguments:?}: {}", output.stderr);
        assert_eq!(output.stdout, "", "{arguments:?}");
    }
}

#[test]
fn a_pool_that_does_not_get_its_pages_ends_the_machine() {
    let Some(mut script) = script(&[]) else { return };
    // Node 1 has no memory.
    let output = CommandOutput::of(script.args(["--layout", "uneven", "--huge", "1,1", "true"]));
    assert_eq!(output.status, 125, "{}", output.stderr);
    assert!(output.stderr.contains("node 1 has 0 huge pages instead of 1"), "{}", output.stderr);
}
