//! Passes the path of these sources to the build script of the command, which compiles them into
//! the preloaded object.

fn main() {
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    // By its full path: if the checkout has moved together with its build folder, the file is
    // missing, and this runs again.
    println!("cargo::rerun-if-changed={folder}/build.rs");
    println!("cargo::metadata=folder={folder}");
}
