//! Tables of files, and their encoded form.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::*;
use crate::error::{FileError, FileProblem};
use crate::test_folder::TestFolder;

/// Makes a file of safetensors with tensors of 16 bytes each.
fn shard(names: &[&str]) -> Vec<u8> {
    let entry = |(index, name): (usize, &&str)| {
        format!(
            r#""{name}":{{"dtype":"BF16","shape":[2,4],"data_offsets":[{},{}]}}"#,
            index * 16,
            index * 16 + 16
        )
    };
    let entries: Vec<String> = names.iter().enumerate().map(entry).collect();
    // The data begin at a multiple of 8, as those that the crate writes.
    let mut text = format!("{{{}}}", entries.join(","));
    text += &" ".repeat(text.len().next_multiple_of(8) - text.len());
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes.resize(bytes.len() + 16 * names.len(), 7);
    bytes
}

fn names(table: &TensorTable) -> Vec<&str> {
    table.tensors().iter().map(|tensor| tensor.name.as_str()).collect()
}

fn problem(path: impl AsRef<Path>) -> FileError {
    TensorTable::read(&[path]).expect_err("the file cannot be loaded")
}

fn model(name: &str, index: &str) -> (TestFolder, PathBuf) {
    let folder = TestFolder::new(name);
    folder.write("model-1.safetensors", &shard(&["b", "a"]));
    folder.write("model-2.safetensors", &shard(&["c"]));
    folder.write("other.safetensors", &shard(&["unused"]));
    let path = folder.write("model.safetensors.index.json", index.as_bytes());
    (folder, path)
}

const INDEX: &str = r#"{"metadata":{"total_size":48},"weight_map":{"a":"model-1.safetensors","b":"model-1.safetensors","c":"model-2.safetensors"}}"#;

#[test]
fn an_index_and_its_folder_load_all_shards() {
    let (folder, index) = model("index", INDEX);
    let table = TensorTable::read(&[&index]).expect("the shards are complete");
    assert_eq!(names(&table), ["a", "b", "c"]);
    assert_eq!(table, TensorTable::read(&[folder.path()]).expect("the folder has the index"));
    assert_eq!(table.files().len(), 2);
    let a = table.get("a").expect("it is in the index");
    assert_eq!((a.file, a.bytes(), table.region_offset(a)), (0, 16, a.range.start));
    assert!(table.get("unused").is_none());
    let c = table.get("c").expect("it is in the index");
    assert_eq!(table.region_offset(c), table.files()[1].region_offset + c.range.start);
    let headers: u64 = table.files().iter().map(|file| file.data_start).sum();
    assert_eq!(table.header_bytes(), headers);
}

#[test]
fn a_folder_without_an_index_loads_all_files_of_a_format() {
    let folder = TestFolder::new("plain");
    folder.write("2.safetensors", &shard(&["x"]));
    folder.write("1.safetensors", &shard(&["y"]));
    folder.write("notes.txt", b"no tensors");
    let table = TensorTable::read(&[folder.path()]).expect("the files are valid");
    assert_eq!(names(&table), ["x", "y"]);
    assert!(table.files()[0].path.ends_with("1.safetensors"));
}

#[test]
fn a_folder_without_files_is_an_error() {
    let folder = TestFolder::new("empty");
    let error = problem(folder.path());
    assert!(matches!(error.problem, FileProblem::EmptyFolder));
    assert!(error.to_string().contains("name the files themselves"), "{error}");
}

#[test]
fn a_missing_shard_is_named_with_its_index() {
    let (folder, index) = model("missing", INDEX);
    fs::remove_file(folder.path().join("model-2.safetensors")).expect("it is there");
    let error = problem(&index);
    assert!(
        matches!(&error.problem, FileProblem::MissingShard { index: found } if *found == index),
        "{error}"
    );
    assert!(error.path.ends_with("model-2.safetensors"));
}

#[test]
fn a_tensor_that_the_index_misplaces_is_named() {
    let (_folder, index) = model("misplaced", &INDEX.replace("\"c\":", "\"d\":"));
    let error = problem(&index);
    assert!(matches!(&error.problem, FileProblem::MissingTensor { tensor, .. } if tensor == "d"), "{error}");
}

#[test]
fn an_index_that_is_none_is_an_error() {
    for (text, why) in [
        ("{", "EOF"),
        ("", "is empty"),
        ("<html>", "is an HTML or XML page"),
        ("version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
        ("{\"weight_map\": 3}", "no object \"weight_map\""),
        ("{\"weight_map\": {}}", "\"weight_map\" names no tensor"),
        (r#"{"weight_map":{"a":"../a.safetensors"}}"#, "not a file in the folder of the index"),
        (r#"{"weight_map":{"a":""}}"#, "not a file in the folder of the index"),
        (r#"{"weight_map":{"a":7}}"#, "not a file in the folder of the index"),
    ] {
        let (_folder, index) = model("no-index", text);
        let error = problem(&index);
        assert!(error.to_string().contains(why), "{text}: {error}");
    }
}

#[test]
fn a_tensor_that_two_files_have_is_named_with_both() {
    let folder = TestFolder::new("twice");
    let first = folder.write("first.safetensors", &shard(&["x", "y"]));
    let second = folder.write("second.safetensors", &shard(&["z", "y"]));
    let error = TensorTable::read(&[&first, &second]).expect_err("both have y");
    let FileProblem::DuplicateTensor { tensor, first: found } = &error.problem else { panic!("{error}") };
    assert_eq!((tensor.as_str(), found, &error.path), ("y", &first, &second));
    let error = TensorTable::read(&[&first, &first]).expect_err("it is named twice").to_string();
    assert!(error.contains("first.safetensors is named twice"), "{error}");
}

#[test]
fn of_weights_in_two_forms_only_those_of_the_index_are_loaded() {
    let (folder, _index) = model("two-forms", INDEX);
    folder.write("consolidated.safetensors", &shard(&["layers.0"]));
    let table = TensorTable::read(&[folder.path()]).expect("the shards are complete");
    assert_eq!(names(&table), ["a", "b", "c"]);

    let index = r#"{"weight_map":{"layers.0":"consolidated.safetensors"}}"#;
    folder.write("consolidated.safetensors.index.json", index.as_bytes());
    assert_eq!(TensorTable::read(&[folder.path()]).expect("the shards are complete"), table);

    let folder = TestFolder::new("two-forms-without-index");
    folder.write("consolidated.safetensors", &shard(&["layers.0"]));
    assert!(TensorTable::read(&[folder.path()]).is_ok());
    let other = folder.write("model.safetensors", &shard(&["model.layers.0"]));
    let error = problem(folder.path());
    assert!(error.path.ends_with("consolidated.safetensors"), "{error}");
    assert!(matches!(&error.problem, FileProblem::TwoForms { other: found } if *found == other), "{error}");
    assert!(error.to_string().contains("name the files to load"), "{error}");
}

#[test]
fn of_several_tensors_that_two_files_have_the_first_of_the_header_is_named() {
    let folder = TestFolder::new("several-twice");
    let names: Vec<String> = (0..40).rev().map(|number| format!("layer.{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let first = folder.write("first.safetensors", &shard(&names));
    let second = folder.write("second.safetensors", &shard(&[&["own"][..], &names[7..]].concat()));
    let third = folder.write("third.safetensors", &shard(&names));
    for _ in 0..20 {
        let error = TensorTable::read(&[&first, &second, &third]).expect_err("all have the names");
        let FileProblem::DuplicateTensor { tensor, first: found } = &error.problem else { panic!("{error}") };
        assert_eq!((tensor.as_str(), found, &error.path), (names[7], &first, &second));
    }
}

#[test]
fn a_file_that_does_not_exist_and_a_device_are_errors() {
    let error = problem("/nonexistent/model.safetensors");
    assert!(error.to_string().starts_with("opening /nonexistent/model.safetensors: No such file"), "{error}");
    assert!(problem("/dev/null").to_string().contains("not a regular file"));
}

#[test]
fn a_file_with_bytes_but_without_a_length_is_an_error() {
    let error = problem("/proc/self/maps").to_string();
    assert!(error.contains("/proc/self/maps cannot be loaded: it has no length"), "{error}");
}

#[test]
fn names_from_an_index_are_escaped_and_cut() {
    let long = "x".repeat(100_000);
    for name in [r"\u001b[2Jred\nline", &long] {
        for text in [
            format!(r#"{{"weight_map":{{"a":"{name}"}}}}"#),
            format!(r#"{{"weight_map":{{"{name}":7}}}}"#),
            format!(r#"{{"weight_map":{{"{name}":"model-1.safetensors"}}}}"#),
        ] {
            let (_folder, index) = model("hostile-index", &text);
            let message = problem(&index).to_string();
            assert!(message.chars().all(|c| !c.is_control()), "{message:?}");
            assert!(message.chars().count() < 5000, "{} characters", message.chars().count());
        }
    }
}

#[test]
fn no_path_at_all_is_an_error() {
    let error = TensorTable::read(&[""; 0]).expect_err("there is no path");
    assert!(matches!(error.problem, FileProblem::NoPaths));
    assert!(error.to_string().contains("name at least one file"), "{error}");
}

fn sample() -> TensorTable {
    let (folder, _) = model("encoded", INDEX);
    let mut table = TensorTable::read(&[folder.path()]).expect("the shards are complete");
    table.files[0].metadata.push(("format".into(), "pt".into()));
    table
}

#[test]
fn a_table_is_decoded_as_it_was_encoded() {
    let table = sample();
    let mut bytes = table.encode();
    let decoded = TensorTable::decode(&bytes).expect("it was just encoded");
    assert_eq!(decoded, table);
    // A table lies in memory that may be longer.
    bytes.extend([0xff; 100]);
    assert!(TensorTable::decode(&bytes).is_ok());
}

#[test]
fn a_table_of_another_version_says_so() {
    let mut bytes = sample().encode();
    bytes[8] = 9;
    let error = TensorTable::decode(&bytes).expect_err("the version is another");
    assert_eq!(error, InvalidTable::OtherVersion(9));
    assert!(error.to_string().contains("has version 9"));
    assert_eq!(TensorTable::decode(&[]), Err(InvalidTable::NoTable));
    assert_eq!(TensorTable::decode(&[0; 4096]), Err(InvalidTable::NoTable));
}

/// Replaces the checksum of a table by that of its bytes.
fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    let checksum = xxhash_rust::xxh3::xxh3_64(&bytes[32..]);
    bytes[24..32].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

#[test]
fn a_table_whose_statements_contradict_each_other_is_damaged() {
    let changes: [fn(&mut TensorTable); 5] = [
        |table| table.tensors[0].file = 2,
        |table| table.tensors[0].range.end += 16,
        |table| table.tensors[0].name = "z".into(),
        |table| table.files[1].region_offset = 0,
        |table| table.region_bytes = 1,
    ];
    for change in changes {
        let mut table = sample();
        change(&mut table);
        assert_eq!(TensorTable::decode(&table.encode()), Err(InvalidTable::Damaged));
    }
}

proptest! {
    #[test]
    fn damaged_tables_are_errors(at in any::<proptest::sample::Index>(), flip in 1u8.., cut in 0usize..50) {
        let mut bytes = sample().encode();
        // Bytes 12 to 16 are reserved.
        let at = at.index(bytes.len());
        prop_assume!(!(12..16).contains(&at));
        bytes[at] ^= flip;
        prop_assert!(TensorTable::decode(&bytes).is_err());
        // The checks after the checksum hold as well: any result, and no panic.
        let forged = with_checksum(bytes);
        let _ = TensorTable::decode(&forged[..forged.len() - cut.min(forged.len() - 32)]);
        prop_assume!(TensorTable::decode(&forged).is_ok());
        let table = TensorTable::decode(&forged).expect("it was just checked");
        for tensor in table.tensors() {
            prop_assert!(table.region_offset(tensor) + tensor.bytes() <= table.region_bytes());
        }
    }
}
