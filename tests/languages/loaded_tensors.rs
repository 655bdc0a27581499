//! Tensors that the launcher has loaded before a program of Python starts.

use hostbuf_tests::{CommandOutput, Scratch, local};

use crate::python::{python, strict};

#[test]
fn python_finds_the_tensors_that_the_launcher_has_loaded() {
    let Some(python) = python() else { return };
    let folder = Scratch::new("python-loaded");
    let path = folder.path("squares.npy");
    let save = "import numpy, sys; numpy.save(sys.argv[1], numpy.arange(1000) ** 2)";
    CommandOutput::of(strict(&python).args(["-c", save, &path])).ok();
    let script = "
import hostbuf
tensors = hostbuf.loaded()
squares = tensors['squares']
print(list(tensors), squares[31], squares.flags.writeable, tensors.files, hex(squares.ctypes.data))
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
