//! Passes the path of these sources to the build script of the command, which compiles them into
//! the preloaded object.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::metadata=folder={}", env!("CARGO_MANIFEST_DIR"));
}
