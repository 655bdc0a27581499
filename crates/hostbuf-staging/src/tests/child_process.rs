//! Tests in a process of their own, since they change the limits of a process or count its pages.

use std::process::Command;

/// The variable that is set in the process of its own.
const VARIABLE: &str = "HOSTBUF_TEST_CHILD";

/// Runs the test `name` of this program, with the path of its modules, in a process of its own.
/// Returns true in that process.
#[must_use]
#[track_caller]
pub(super) fn in_child_process(name: &str) -> bool {
    if std::env::var_os(VARIABLE).is_some() {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().expect("this"));
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    let output = command.env(VARIABLE, "1").output().expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}{err}");
    false
}
