//! fork, while another thread of the process is inside the library.

use std::process::Command;

use hostbuf_tests::{CommandOutput, local, program, root, skip};

#[test]
fn a_child_does_not_wait_for_an_attachment_of_its_parent() {
    let outcome = CommandOutput::of(Command::new(program("fork_probe")).arg("attaching")).ok();
    assert_eq!(outcome.stdout, "well\n", "{outcome:?}");
}

#[test]
fn a_child_can_ask_for_the_registrations_made_before_main() {
    if !root().join("target/lib/hostbuf/libhostbuf_register.so").is_file() {
        return skip("registering before main: the object is not built (scripts/build)");
    }
    let probe = program("fork_probe");
    let probe = probe.to_str().expect("UTF-8");
    let outcome = local(1, "4M", &["--register", "mlock"], &[probe, "registered"]).ok();
    assert_eq!(outcome.lines("well"), [""], "{outcome:?}");
}
