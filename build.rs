//! Builds the preloaded object (launcher/preload), which the command `hostbuf` carries inside itself.
//!
//! It cannot be an ordinary cdylib: rustc would link it with libc and export its memory functions. So rustc
//! makes a static library of it and the C compiler links that alone, with a version script that hides all.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn run(command: &mut Command, what: &str) {
    let done = command.status().unwrap_or_else(|e| panic!("{what}: cannot start {command:?}: {e}"));
    assert!(done.success(), "{what} failed: {command:?}: {done}");
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for shared in [
        "launcher/preload/src",
        "crates/hostbuf-raw/src/syscall.rs",
        "crates/hostbuf-raw/src/maps.rs",
        "crates/hostbuf-protocol/src/ballot.rs",
        "crates/hostbuf-protocol/src/candidates.rs",
        "crates/hostbuf-protocol/src/wire.rs",
    ] {
        println!("cargo::rerun-if-changed={shared}");
    }
    if env::var_os("CARGO_FEATURE_LAUNCHER").is_none() {
        return;
    }
    println!("cargo::rerun-if-env-changed=CC");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let archive = out.join("libhostbuf_preload.a");
    let script = out.join("preload.map");
    std::fs::write(&script, "{ local: *; };\n").expect("OUT_DIR is writable");
    let target = env::var("TARGET").expect("cargo sets TARGET");
    run(
        Command::new(env::var_os("RUSTC").expect("cargo sets RUSTC"))
            .args(["--edition=2024", "--crate-name=hostbuf_preload", "--crate-type=staticlib"])
            .args(["-Cpanic=abort", "-Copt-level=s", "-Ccodegen-units=1", "-Crelocation-model=pic"])
            .args(["-Cforce-frame-pointers=no", "--target", &target, "-o"])
            .arg(&archive)
            .arg(Path::new("launcher/preload/src/lib.rs")),
        "compiling the preloaded object",
    );
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    run(
        Command::new(compiler)
            .args([
                "-shared",
                "-nostdlib",
                "-Wl,--gc-sections,-z,now,-z,noexecstack,-s,-soname,libhostbuf_preload.so",
            ])
            .arg(format!("-Wl,--version-script={}", script.display()))
            .arg("-o")
            .arg(out.join("libhostbuf_preload.so"))
            .args(["-Wl,-u,hostbuf_preload_start"])
            .arg(&archive),
        "linking the preloaded object",
    );
}
