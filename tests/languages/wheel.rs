//! Python wheels for other machines: what they need there, and a job with one in a new environment.

use std::fs;
use std::process::Command;

use hostbuf_tests::{CommandOutput, Scratch, hostbuf, root, skip};

use crate::installation::has;

/// The libraries that manylinux lets a wheel take from the system, of those that a Rust library may
/// need.
const FROM_THE_SYSTEM: [&str; 7] = [
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
    "ld-linux-x86-64.so.2",
];

#[test]
fn a_wheel_needs_only_libraries_of_every_distribution() {
    let library = root().join("target/python-plain/hostbuf/_hostbuf.abi3.so");
    if !has("objdump", "the libraries of a wheel") {
        return;
    }
    if !library.exists() {
        return skip("the libraries of a wheel: none is built (scripts/build-python)");
    }
    let headers = CommandOutput::of(Command::new("objdump").arg("-p").arg(&library)).ok();
    let needed = headers.stdout.lines().filter_map(|line| line.trim().strip_prefix("NEEDED"));
    let needed: Vec<_> = needed.map(str::trim).collect();
    assert!(needed.contains(&"libc.so.6"), "{needed:?}");
    for name in needed {
        let known = FROM_THE_SYSTEM.contains(&name) || name.starts_with("ld-linux-");
        assert!(known, "no wheel for manylinux may need {name} of the system");
    }
}

/// Both ranks get the object that one of them builds.
const TWO_RANKS: &str = "
import os, sys, hostbuf
assert hostbuf.__file__.startswith(sys.prefix)
buffer = hostbuf.attach()
table = buffer.initialize(lambda arena: {'numbers': bytearray(range(10)), 'rank': os.environ['HOSTBUF_RANK']})
assert buffer.address == int(os.environ['HOSTBUF_ADDRESS'], 16)
print(os.environ['HOSTBUF_RANK'], list(table['numbers']) == list(range(10)))
";

#[test]
#[ignore = "needs the wheel of scripts/build-wheel, which takes minutes to compile (scripts/test-long wheel)"]
fn the_manylinux_wheel_runs_a_job_in_a_new_environment() {
    let folder = fs::read_dir(root().join("target/manylinux/wheels")).expect("scripts/build-wheel made it");
    let wheels: Vec<_> = folder.map(|file| file.expect("it can be read").path()).collect();
    let [wheel] = &wheels[..] else { panic!("one wheel is wanted: {wheels:?}") };
    let name = wheel.file_name().and_then(|name| name.to_str()).expect("a name");
    let tag = format!("manylinux_2_28_{}", std::env::consts::ARCH);
    assert_eq!(name, format!("hostbuf-{}-cp39-abi3-{tag}.whl", env!("CARGO_PKG_VERSION")));
    let audit =
        CommandOutput::of(Command::new(root().join("target/wheel/bin/auditwheel")).arg("show").arg(wheel));
    let audit = audit.ok().stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(audit.contains(&format!("is consistent with the following platform tag: \"{tag}\"")), "{audit}");

    let scratch = Scratch::new("wheel");
    let python = scratch.path("environment/bin/python");
    let run = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&scratch.0).env_remove("PYTHONPATH");
        CommandOutput::of(&mut command).ok()
    };
    run("python3", &["-m", "venv", "environment"]);
    let install =
        ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"];
    run(&python, &[&install[..], &[wheel.to_str().expect("UTF-8")]].concat());
    let job = ["run", "--launcher", "local", "-n", "2", "--size", "4M", "--", &python, "-c", TWO_RANKS];
    let mut ranks = run(hostbuf().to_str().expect("UTF-8"), &job).lines("");
    ranks.sort();
    assert_eq!(ranks, ["0 True", "1 True"]);
}
