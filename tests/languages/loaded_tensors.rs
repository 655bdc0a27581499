//! Tensors that the launcher has loaded before a program of Python, C or C++ starts.

use std::process::Command;

use hostbuf_tests::{CommandOutput, Scratch, local};

use crate::interface::built;
use crate::python::{python, strict};

/// Writes a file of npy with the squares of the numbers below 1000.
fn write_squares(path: &str) {
    let header = "{'descr': '<i8', 'fortran_order': False, 'shape': (1000,), }";
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend(118u16.to_le_bytes());
    bytes.extend(format!("{header:<117}\n").as_bytes());
    bytes.extend((0..1000i64).flat_map(|number| (number * number).to_le_bytes()));
    std::fs::write(path, bytes).expect("the folder is writable");
}

#[test]
fn python_finds_the_tensors_that_the_launcher_has_loaded() {
    let Some(python) = python() else { return };
    let folder = Scratch::new("python-loaded");
    let path = folder.path("squares.npy");
    let save = "import numpy, sys; numpy.save(sys.argv[1], numpy.arange(1000) ** 2)";
    CommandOutput::of(strict(&python).args(["-c", save, &path])).ok();
    let script = "
import hostbuf, sys
tensors = hostbuf.loaded()
squares = tensors['squares']
values = list(tensors), squares[31], squares.flags.writeable, tensors.files, hex(squares.ctypes.data)
# One write: the processes share standard output, and Python may run unbuffered.
sys.stdout.write(' '.join(map(str, values)) + '\\n')
";
    let python = python.to_str().expect("UTF-8");
    let outcome = local(2, "1M", &["--load", &path], &[python, "-c", script]).ok();
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert!(lines.len() == 2 && lines[0] == lines[1], "{outcome:?}");
    assert!(lines[0].starts_with(&format!("['squares'] 961 False ['{path}'] 0x55")), "{outcome:?}");
    // Without a launcher, and without --load, there are none.
    let none = ["-c", "import hostbuf; print(hostbuf.loaded())"];
    assert_eq!(CommandOutput::of(strict(python.as_ref()).args(none)).ok().stdout, "None\n");
    assert_eq!(local(1, "1M", &[], &[&[python], &none[..]].concat()).ok().stdout, "None\n");
}

#[test]
fn c_and_cpp_find_the_tensors_that_the_launcher_has_loaded() {
    let Some(program) = built("g++", &["-std=c++17", "-Itests/fixtures"], "loaded_before_main.cpp") else {
        return;
    };
    let folder = Scratch::new("cpp-loaded");
    let path = folder.path("squares.npy");
    write_squares(&path);
    let program = program.0.to_str().expect("UTF-8");
    let outcome = local(2, "1M", &["--load", &path], &[program]).ok();
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert!(lines.len() == 2 && lines[0] == lines[1] && lines[0].starts_with("961 at 0x55"), "{outcome:?}");
    // Without a launcher, and without --load, there are none.
    assert_eq!(CommandOutput::of(&mut Command::new(program)).ok().stdout, "none\n");
    assert_eq!(local(1, "1M", &[], &[program]).ok().stdout, "none\n");
}
