//! Compares include/hostbuf.h with the code.

use std::path::Path;

use library::ErrorClass;

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

#[test]
fn each_class_of_errors_has_the_number_of_its_status() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = std::fs::read_to_string(own.join("../../include/hostbuf.h")).expect("the header");
    let mut named = 0;
    for class in ErrorClass::ALL {
        let Some(number) = class.c_status() else { continue };
        let mut name = String::from("HOSTBUF");
        for letter in format!("{class:?}").chars() {
            if letter.is_uppercase() {
                name.push('_');
            }
            name.push(letter.to_ascii_uppercase());
        }
        assert!(header.contains(&format!(" {name} = {number},")), "{name} = {number}");
        named += 1;
    }
    assert_eq!(
        named,
        ErrorClass::ALL.len() - 3,
        "a general error and the errors of a program have no status"
    );
}
