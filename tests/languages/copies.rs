//! Several copies of the library in one process: a Rust program, libhostbuf, the Python module, and
//! the object of `--register`.

use std::path::PathBuf;
use std::process::Command;

use hostbuf_tests::{CommandOutput, fixture, hostbuf, program, root, skip};

/// Returns libhostbuf, or records a skip.
fn library() -> Option<PathBuf> {
    let library = root().join("target/lib/libhostbuf.so");
    if library.is_file() {
        return Some(library);
    }
    skip("several copies of the library: libhostbuf is not built (scripts/build)");
    None
}

/// Returns the library of a Python interpreter that a program can embed, or records a skip.
fn interpreter() -> Option<String> {
    if !root().join("target/python-plain/hostbuf").is_dir() {
        skip("several copies of the library: the Python package is not built (scripts/build-python)");
        return None;
    }
    let script = "import ctypes, sysconfig as s
name = s.get_config_var('INSTSONAME') or ''
if '.so' not in name: name = 'libpython' + s.get_config_var('LDVERSION') + '.so.1.0'
ctypes.CDLL(name)
print(name)";
    let name = |python: &&str| {
        let said =
            Command::new(python).args(["-c", script]).output().ok().filter(|said| said.status.success())?;
        Some(String::from_utf8_lossy(&said.stdout).trim().to_owned())
    };
    let found = ["python3", "/usr/bin/python3"].iter().find_map(name);
    if found.is_none() {
        skip("several copies of the library: there is no shared library of Python (Debian: libpython3-dev)");
    }
    found
}

/// Runs a scenario of tests/programs/src/bin/copies, by the launcher with the options `launched` or
/// directly.
fn scenario(launched: Option<&[&str]>, arguments: &[&str]) -> CommandOutput {
    let probe = program("copies");
    let mut command = match launched {
        Some(options) => {
            let mut command = Command::new(hostbuf());
            command
                .args(["run", "--launcher", "local", "-n", "1", "--size", "4M"])
                .args(options)
                .arg("--")
                .arg(probe);
            command
        }
        None => Command::new(probe),
    };
    command.args(arguments).env("PYTHONPATH", root().join("target/python-plain"));
    command.env("PYTHONDONTWRITEBYTECODE", "1").env_remove("HOSTBUF_CACHE_MONITOR");
    let outcome = CommandOutput::of(&mut command).ok();
    assert_eq!(outcome.lines("well "), [arguments[0]], "{outcome:?}");
    outcome
}

fn has_monitor() -> bool {
    let probe = hostbuf::register::MonitorMode::probe();
    if !probe.is_ready() {
        skip(&format!("several copies of the library and the strict monitor: {probe}"));
    }
    probe.is_ready()
}

#[test]
fn freezing_asks_every_copy() {
    let (Some(library), Some(python)) = (library(), interpreter()) else { return };
    let library = library.to_str().expect("UTF-8");
    scenario(Some(&[]), &["freeze", library, &python]);
    if !root().join("target/lib/hostbuf/libhostbuf_register.so").is_file() {
        return skip("several copies of the library: the registering object is not built (scripts/build)");
    }
    let outcome = scenario(Some(&["--register", "mlock"]), &["freeze", library, &python]);
    assert_eq!(outcome.lines("registered "), ["Some(1)"], "{outcome:?}");
}

#[test]
fn one_copy_has_the_monitor_and_the_others_say_so() {
    let (Some(library), Some(python)) = (library(), interpreter()) else { return };
    if has_monitor() {
        scenario(None, &["monitor", library.to_str().expect("UTF-8"), &python]);
    }
}

#[test]
fn memory_of_one_copy_is_own_memory_for_the_others() {
    let Some(library) = library() else { return };
    scenario(None, &["own", library.to_str().expect("UTF-8")]);
}

#[test]
fn one_copy_fills_a_buffer_at_a_time() {
    let Some(library) = library() else { return };
    scenario(Some(&[]), &["fill", library.to_str().expect("UTF-8")]);
}

#[test]
fn a_forked_child_may_have_the_monitor_in_another_copy() {
    let Some(library) = library() else { return };
    if has_monitor() {
        scenario(None, &["fork", library.to_str().expect("UTF-8")]);
    }
}

#[test]
fn a_used_copy_stays_loaded() {
    let Some(library) = library() else { return };
    scenario(Some(&[]), &["unload", library.to_str().expect("UTF-8")]);
}

#[test]
fn copies_that_begin_at_once_find_each_other() {
    let Some(library) = library() else { return };
    if has_monitor() {
        for _ in 0..40 {
            scenario(None, &["race", library.to_str().expect("UTF-8")]);
        }
    }
}

#[test]
fn a_copy_of_another_version_is_named() {
    let newer = fixture("cc", "newer_copy.c", &["-shared", "-fPIC"]).expect("a C compiler is there");
    scenario(Some(&[]), &["skew", newer.to_str().expect("UTF-8")]);
}
