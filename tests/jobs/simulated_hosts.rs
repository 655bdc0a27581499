//! Tests of scripts/simhosts, on which the tests with several hosts rely.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use hostbuf_tests::{CommandOutput, can_simulate, root};

/// A reachable host refuses a connection to a closed port; a disconnected one does not reply.
const REACH: &str = r#"
reach() {
    answer=$($SIMHOSTS_RSH "$1" "exec 2>&1; timeout $3 bash -c ': </dev/tcp/$2/9'")
    case $answer in *"Connection refused"*) echo reached ;; *) echo silence ;; esac
}
reach h1 h0 30; reach h0 h2 30; reach h2 head 30
"$SIMHOSTS_DIR/host" down h0; reach h1 h0 0.5
"$SIMHOSTS_DIR/host" up h0; reach h1 h0 30
"#;

#[test]
fn the_network_starts_without_the_command_ip() {
    if !can_simulate() {
        return;
    }
    // The command cannot be removed, so every use of it fails instead.
    let place = root().join(format!("target/without-ip-{}", std::process::id()));
    fs::create_dir_all(&place).expect("target/ is writable");
    fs::write(place.join("ip"), "#!/bin/sh\necho 'ip was called' >&2\nexit 1\n")
        .expect("target/ is writable");
    fs::set_permissions(place.join("ip"), fs::Permissions::from_mode(0o755)).expect("it was just made");
    let path = format!("{}:{}", place.display(), std::env::var("PATH").expect("a PATH"));
    let mut command = Command::new(root().join("scripts/simhosts"));
    let outcome = CommandOutput::of(command.args(["3", "--", "bash", "-c", REACH]).env("PATH", path));
    fs::remove_dir_all(&place).expect("it was just made");
    let seen: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(seen, ["reached", "reached", "reached", "silence", "reached"], "{outcome:?}");
}
