//! Builds the preloaded object, which the command `hostbuf` contains: it compiles hostbuf-raw,
//! hostbuf-protocol and hostbuf-preload again for this purpose. Cargo passes the paths of their
//! sources (`links`).
//!
//! The object cannot be an ordinary cdylib: rustc would link it with libc and export its memory
//! functions. So rustc makes a static library, and the C compiler links only that, with a version
//! script that hides all symbols.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn run(command: &mut Command, what: &str) {
    let done = command.status().unwrap_or_else(|e| panic!("{what}: cannot start {command:?}: {e}"));
    assert!(done.success(), "{what} failed: {command:?}: {done}");
}

/// Returns the folder of a package that this one depends on.
fn folder_of(package: &str) -> PathBuf {
    let variable = format!("DEP_HOSTBUF_{package}_FOLDER");
    PathBuf::from(env::var_os(&variable).unwrap_or_else(|| panic!("cargo sets {variable}")))
}

/// Compiles the crate in the folder `sources` into `out`, for a size as small as possible and
/// without unwinding. It uses the crates `named`.
fn rustc(out: &Path, name: &str, sources: &Path, kind: &str, named: &[&str]) {
    let mut command = Command::new(env::var_os("RUSTC").expect("cargo sets RUSTC"));
    command
        .args(["--edition=2024", "--crate-name", name, "--crate-type", kind])
        .args(["-Cpanic=abort", "-Copt-level=s", "-Ccodegen-units=1", "-Crelocation-model=pic"])
        .args(["-Cforce-frame-pointers=no", "--target", &env::var("TARGET").expect("cargo sets TARGET")])
        .arg("-L")
        .arg(out)
        .arg("--out-dir")
        .arg(out);
    for dependency in named {
        command
            .arg("--extern")
            .arg(format!("{dependency}={}", out.join(format!("lib{dependency}.rlib")).display()));
    }
    if kind == "staticlib" {
        // The linker keeps only the parts of the other crates that this one uses.
        command.arg("-Clto=fat");
    }
    run(command.arg(sources.join("lib.rs")), &format!("compiling {name}, a part of the preloaded object"));
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let [raw, protocol, preload] = ["RAW", "PROTOCOL", "PRELOAD"].map(folder_of);
    let [raw, protocol, logic, object] =
        [raw.join("src"), protocol.join("src"), preload.join("src"), preload.join("object")];
    for sources in [&raw, &protocol, &logic, &object] {
        println!("cargo::rerun-if-changed={}", sources.display());
    }
    println!("cargo::rerun-if-env-changed=CC");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let script = out.join("preload.map");
    std::fs::write(&script, "{ local: *; };\n").expect("OUT_DIR is writable");
    rustc(&out, "hostbuf_raw", &raw, "rlib", &[]);
    rustc(&out, "hostbuf_protocol", &protocol, "rlib", &["hostbuf_raw"]);
    rustc(&out, "hostbuf_preload", &logic, "rlib", &["hostbuf_raw", "hostbuf_protocol"]);
    rustc(&out, "hostbuf_preload_object", &object, "staticlib", &["hostbuf_preload"]);
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
            .arg(out.join("libhostbuf_preload_object.a")),
        "linking the preloaded object",
    );
}
