//! Tells the build script of the command where these sources are: it compiles them into the
//! preloaded object.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::metadata=folder={}", env!("CARGO_MANIFEST_DIR"));
}
