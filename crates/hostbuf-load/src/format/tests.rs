//! Headers that are valid, damaged and random.

use std::io;
use std::path::Path;

use hostbuf_staging::ReadAt;
use proptest::prelude::*;

use super::FileHeader;
use crate::error::FileProblem;
use crate::table::{ArrayOrder, ByteOrder, Dtype, TensorEntry};

/// A file in memory. It fails the test if a read begins or ends beyond its end.
struct Bytes(Vec<u8>);

impl ReadAt for Bytes {
    fn name(&self) -> String {
        "memory".into()
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let from = &self.0[offset as usize..][..into.len()];
        // Short reads are continued.
        let bytes = from.len().min(7);
        into[..bytes].copy_from_slice(&from[..bytes]);
        Ok(bytes)
    }
}

fn read(name: &str, bytes: &[u8]) -> Result<FileHeader, FileProblem> {
    let length = bytes.len() as u64;
    FileHeader::read(Path::new(name), &Bytes(bytes.to_vec()), length, None).map(|(header, _)| header)
}

/// Makes a file of safetensors.
pub(crate) fn safetensors(text: &str, data: usize) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes.extend((0..data).map(|at| at as u8));
    bytes
}

/// Makes a file of numpy's format.
pub(crate) fn npy(version: u8, text: &str, data: usize) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY".to_vec();
    bytes.extend([version, 0]);
    let length = (text.len() as u32).to_le_bytes();
    bytes.extend_from_slice(if version == 1 { &length[..2] } else { &length });
    bytes.extend_from_slice(text.as_bytes());
    bytes.extend((0..data).map(|at| at as u8));
    bytes
}

fn problem(name: &str, bytes: &[u8]) -> String {
    let problem = read(name, bytes).expect_err("the header is not valid");
    problem.at(name).to_string()
}

const TWO: &str = r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"a":{"dtype":"F4","shape":[4],"data_offsets":[24,26]}}"#;

#[test]
fn safetensors_are_described() {
    let mut header = read("m.safetensors", &safetensors(TWO, 26)).expect("the header is valid");
    header.tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let start = 8 + TWO.len() as u64;
    assert_eq!(header.data_start, start);
    assert_eq!(header.metadata, [("format".to_owned(), "pt".to_owned())]);
    let found: Vec<_> =
        header.tensors.iter().map(|t| (t.name.as_str(), t.dtype, &t.shape[..], t.range.clone())).collect();
    let expected = [
        ("a", Dtype::F4, &[4][..], start + 24..start + 26),
        ("b", Dtype::F32, &[2, 3][..], start..start + 24),
    ];
    assert_eq!(found, expected);
}

#[test]
fn safetensors_that_lie_are_refused() {
    let short = problem("m.safetensors", &[1, 2, 3]);
    assert!(short.contains("8 bytes at offset 0") && short.contains("has 3 bytes"), "{short}");
    let mut long = safetensors(TWO, 26);
    long[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(problem("m.safetensors", &long).contains("18446744073709551615 bytes at offset 8"));
    let cut = problem("m.safetensors", &safetensors(TWO, 25));
    assert!(cut.contains("tensor \"a\" ends at byte"), "{cut}");
    let more = problem("m.safetensors", &safetensors(TWO, 27));
    assert!(more.contains("the data end at byte") && more.contains("Copy or write"), "{more}");
    for text in [
        "",
        "[]",
        r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,9]}}"#,
        r#"{"a":{"dtype":9,"shape":[2],"data_offsets":[0,8]}}"#,
        r#"{"__metadata__":{"dtype":"bfloat16"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,9]}}"#,
        r#"{"a":{"dtype":"U8","shape":[18446744073709551615,2],"data_offsets":[0,8]}}"#,
        // A hole, and an overlap.
        r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#,
        r#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#,
    ] {
        let found = read("m.safetensors", &safetensors(text, 8));
        assert!(matches!(found, Err(FileProblem::Header { .. })), "{text}: {found:?}");
    }
}

#[test]
fn a_type_that_is_not_known_is_named_with_its_tensor() {
    let text = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"X9","shape":[4],"data_offsets":[4,8]}}"#;
    let message = problem("m.safetensors", &safetensors(text, 8));
    assert!(
        message.contains("it has tensor \"b\" of type X9, which this version does not know"),
        "{message}"
    );
    assert!(!message.contains("damaged"), "{message}");
}

#[test]
fn other_contents_are_named() {
    let lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
    for (bytes, why) in [
        (&b""[..], "is empty: "),
        (lfs, "is a Git LFS pointer, not the file itself: run `git lfs pull`"),
        (b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>", "is an HTML or XML page"),
        (b"\xef\xbb\xbf \r\n<HTML><body>404 Not Found</body></HTML>", "is an HTML or XML page"),
        (b"<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code></Error>", "is an HTML or XML page"),
        (b"<!DOCTYPE htm", "is damaged"),
    ] {
        for name in ["m.safetensors", "w.npy", "t.arrow"] {
            let message = problem(name, bytes);
            assert!(message.contains(why), "{name}: {message}");
        }
        // Files of no known format may have any bytes.
        assert!(read("m.bin", bytes).is_ok());
    }
}

#[test]
fn a_name_that_a_header_has_twice_is_an_error() {
    let text = r#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"a":{"dtype":"I8","shape":[8],"data_offsets":[0,8]}}"#;
    let found = read("m.safetensors", &safetensors(text, 8));
    assert!(matches!(found, Err(FileProblem::NamedTwice { tensor }) if tensor == "a"));
}

#[test]
fn npy_of_all_versions_and_orders_is_described() {
    for (version, descr, order, dtype, big) in [
        (1, "<f4", "False", Dtype::F32, false),
        (2, ">i2", "True", Dtype::I16, true),
        (3, "|u1", "False", Dtype::U8, false),
        (1, ">u1", "True", Dtype::U8, false),
        (1, "<c16", "False", Dtype::C128, false),
    ] {
        let text = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': (2, 3), }}   \n");
        let bytes = npy(version, &text, 96);
        let header = read("dir/w.npy", &bytes).expect("the header is valid");
        let TensorEntry { name, dtype: found, shape, order: found_order, byte_order, range, .. } =
            &header.tensors[0];
        assert_eq!((name.as_str(), *found, &shape[..]), ("w", dtype, &[2, 3][..]));
        assert_eq!(*found_order, if order == "True" { ArrayOrder::Fortran } else { ArrayOrder::C });
        assert_eq!(*byte_order, if big { ByteOrder::Big } else { ByteOrder::Little });
        let data = (bytes.len() - 96) as u64;
        assert_eq!(*range, data..data + 6 * u64::from(dtype.bits() / 8));
    }
}

#[test]
fn npy_scalars_and_vectors_are_described() {
    for (shape, expected) in [("()", &[][..]), ("(5,)", &[5]), ("(5L, 0)", &[5, 0])] {
        let text = format!("{{\"shape\": {shape}, 'fortran_order': False, 'descr': '<f8'}}");
        let header = read("w.npy", &npy(1, &text, 40)).expect("the header is valid");
        assert_eq!(header.tensors[0].shape, expected);
    }
}

#[test]
fn npy_of_objects_records_and_texts_is_refused() {
    for (descr, remedy) in [
        ("'|O'", "pickles"),
        ("[('a', '<f4'), ('b', '<i8', (2,))]", "complex128"),
        ("'<U5'", "complex128"),
        ("'<M8[s]'", "complex128"),
    ] {
        let text = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': (1,)}}");
        let message = problem("w.npy", &npy(1, &text, 64));
        assert!(message.contains("cannot be loaded") && message.contains(remedy), "{message}");
    }
}

/// Checks that a message is one short line without control characters.
fn is_one_short_line(message: &str) {
    assert!(message.chars().all(|c| !c.is_control()) && message.chars().count() < 700, "{message:?}");
}

#[test]
fn names_from_headers_neither_control_the_terminal_nor_flood_it() {
    let long = "x".repeat(100_000);
    for name in [r"\u001b[2Jred\nline", &long] {
        for (dtype, end) in [("F32", 8), ("F32", 80), ("X9", 8), (name, 8)] {
            let text = format!(
                r#"{{"{name}":{{"dtype":"{dtype}","shape":[2],"data_offsets":[0,8]}},"{name}":{{"dtype":"F32","shape":[{}],"data_offsets":[8,{end}]}}}}"#,
                (end - 8) / 4
            );
            is_one_short_line(&problem("m.safetensors", &safetensors(&text, 8)));
        }
        let text = format!(r#"{{"{name}":{{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}}}"#);
        is_one_short_line(&problem("m.safetensors", &safetensors(&text, 8)));
        is_one_short_line(&problem("m.safetensors", &safetensors(&format!(r#"{{"a":"{name}"}}"#), 8)));
    }
    for text in ["\u{1b}[2Jred\nline", &long] {
        for header in [
            format!("{{'{text}': 1}}"),
            format!("{{'descr': '{text}', 'fortran_order': False, 'shape': (1,)}}"),
            format!("{{'descr': 'O{text}', 'fortran_order': False, 'shape': (1,)}}"),
            format!("{{'descr': [('{text}', '<f4')], 'fortran_order': False, 'shape': (1,)}}"),
        ] {
            is_one_short_line(&problem("w.npy", &npy(3, &header, 64)));
        }
    }
}

#[test]
fn npy_that_lies_is_refused() {
    let text = "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000, 1000000, 1000000, 1000000)}";
    let message = problem("w.npy", &npy(1, text, 64));
    assert!(message.contains("the shape of tensor \"w\" needs 2^64 bytes or more"), "{message}");
    let text = "{'descr': '<f8', 'fortran_order': False, 'shape': (9,)}";
    let message = problem("w.npy", &npy(1, text, 64));
    assert!(message.contains("tensor \"w\" ends at byte"), "{message}");
    for (text, why) in [
        ("{'descr': '<f8', 'shape': (1,)}", "is missing"),
        ("{'descr': '<f8', 'descr': '<f8', 'fortran_order': False, 'shape': (1,)}", "occurs twice"),
        ("{'descr': '<f8', 'fortran_order': Maybe, 'shape': (1,)}", "expected True or False"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}", "expected a number"),
        (
            "{'descr': '<f8', 'fortran_order': False, 'shape': (1, 18446744073709551616)}",
            "the number at character 54 is larger than 2^64 - 1",
        ),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (1,)} or", "expected the end"),
        ("{'descr': [('a', '<f8', 'fortran_order': False", "does not end"),
        ("", "the text ends"),
    ] {
        let message = problem("w.npy", &npy(1, text, 64));
        assert!(message.contains(why), "{text}: {message}");
    }
}

#[test]
fn arrow_files_are_checked_at_both_ends() {
    let mut file = b"ARROW1\0\0".to_vec();
    file.extend([7; 100]);
    file.extend(60i32.to_le_bytes());
    file.extend(b"ARROW1");
    let header = read("t.arrow", &file).expect("the layout is valid");
    assert_eq!((header.tensors[0].name.as_str(), header.tensors[0].bytes()), ("t", file.len() as u64));
    let cut = problem("t.arrow", &file[..file.len() - 1]);
    assert!(cut.contains("ends with \"ARROW1\""), "{cut}");
    let length = file.len() - 10;
    file[length..length + 4].copy_from_slice(&101i32.to_le_bytes());
    assert!(problem("t.arrow", &file).contains("its footer has 101 bytes"));
    assert!(problem("t.feather", b"FEA1 and more").contains("Feather 2"));
    assert!(problem("t.feather", b"ARROW1").contains("damaged"));
}

#[test]
fn formats_are_found_without_an_extension() {
    let text = "{'descr': '<f8', 'fortran_order': False, 'shape': (1,)}";
    let header = read("weights", &npy(1, text, 8)).expect("it begins as numpy's format");
    assert_eq!(header.tensors[0].dtype, Dtype::F64);
    let header = read("hash.k2d", b"any bytes").expect("any bytes are valid");
    assert_eq!((header.tensors[0].name.as_str(), header.tensors[0].range.clone()), ("hash.k2d", 0..9));
}

/// Checks the result of reading any bytes: an error, or tensors within the file.
fn is_safe(name: &str, bytes: &[u8]) {
    if let Ok(header) = read(name, bytes) {
        for tensor in header.tensors {
            assert!(tensor.is_consistent() && tensor.range.end <= bytes.len() as u64, "{tensor:?}");
        }
    }
}

const NAMES: [&str; 4] = ["f.safetensors", "f.npy", "f.arrow", "f"];

proptest! {
    #[test]
    fn random_bytes_are_no_danger(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        NAMES.iter().for_each(|name| is_safe(name, &bytes));
    }

    #[test]
    fn random_texts_are_no_danger(text in "[\\[\\]{}(),:'\"a-z0-9<|TF ]{0,80}") {
        is_safe("f.safetensors", &safetensors(&text, 16));
        (1..4).for_each(|version| is_safe("f.npy", &npy(version, &text, 16)));
    }

    #[test]
    fn changed_headers_are_no_danger(
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..5),
        cut in 0usize..40,
    ) {
        let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
        for (name, mut bytes) in [("f.safetensors", safetensors(TWO, 26)), ("f.npy", npy(1, text, 24))] {
            for (at, byte) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            bytes.truncate(bytes.len() - cut);
            is_safe(name, &bytes);
        }
    }
}
