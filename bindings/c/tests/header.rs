//! Compares include/hostbuf.h with the code.

use std::path::Path;

/// With `HOSTBUF_WRITE_HEADER=1` the test writes the header.
#[test]
fn the_header_matches_the_code() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(own.join("cbindgen.toml")).expect("the configuration");
    let mut made = Vec::new();
    cbindgen::Builder::new()
        .with_src(own.join("src/lib.rs"))
        .with_config(config)
        .generate()
        .expect("a header")
        .write(&mut made);
    let made = String::from_utf8(made).expect("text");
    let header = own.join("../../include/hostbuf.h");
    if std::env::var_os("HOSTBUF_WRITE_HEADER").is_some() {
        std::fs::write(&header, &made).expect("the header is writable");
    }
    let there = std::fs::read_to_string(&header).unwrap_or_default();
    assert!(
        there == made,
        "include/hostbuf.h differs from the code: run the test with HOSTBUF_WRITE_HEADER=1"
    );
}
