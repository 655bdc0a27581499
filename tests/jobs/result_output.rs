//! Commands whose result cannot be written to standard output.

use std::fs::{self, File};
use std::process::{Command, Stdio};

use hostbuf_tests::{CommandOutput, Scratch, hostbuf};

/// Runs a command with this standard output.
fn run(arguments: &[&str], output: impl Into<Stdio>) -> CommandOutput {
    CommandOutput::of(Command::new(hostbuf()).args(arguments).stdout(output))
}

/// Makes a file of numpy with one number.
fn array(folder: &Scratch) -> String {
    let path = folder.path("a.npy");
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }";
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend([1; 4]);
    fs::write(&path, file).expect("the folder is writable");
    path
}

#[test]
fn a_result_that_cannot_be_written_is_an_error() {
    let folder = Scratch::new("result-output-full");
    let file = array(&folder);
    for arguments in [
        &["load", &file][..],
        &["load", "--keep", &file],
        &["stat"],
        &["stat", "--json"],
        &["doctor"],
        &["bench", "--rounds", "1", &file],
        &["bench", "--json", "--rounds", "1", &file],
        &["topology"],
        &["version"],
        &["--version"],
        &["load", "--help"],
    ] {
        let full = File::options().write(true).open("/dev/full").expect("the kernel has it");
        let outcome = run(arguments, full);
        assert_eq!(outcome.status, 85, "{arguments:?}: {outcome:?}");
        assert!(outcome.stderr.contains("writing to standard output"), "{arguments:?}: {outcome:?}");
        assert!(outcome.stderr.contains("No space left"), "{arguments:?}: {outcome:?}");
    }
}

#[test]
fn a_reader_that_has_ended_is_no_error() {
    let folder = Scratch::new("result-output-closed");
    let file = array(&folder);
    for arguments in
        [&["load", &file][..], &["stat", "--json"], &["topology"], &["version"], &["load", "--help"]]
    {
        let (reader, writer) = std::io::pipe().expect("there are descriptors");
        drop(reader);
        let outcome = run(arguments, writer);
        assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{arguments:?}");
    }
}
