//! A model of llama.cpp in the memory of the host (`--load` with `--as-files`), read from its path
//! by the package gguf.

use hostbuf_tests::{CommandOutput, Scratch, hostbuf, skip};

use crate::python::{python, strict};

/// The types of a string and of the numbers of a tensor, and the alignment of the data, in GGUF.
const STRING: u32 = 8;
const F32: u32 = 0;
const ALIGNMENT: usize = 32;

/// Returns a string of GGUF: its length and its bytes.
fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// Returns a file of GGUF, version 3, with the squares of the numbers below 6000 as one tensor of
/// 60 rows.
fn squares() -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    // One tensor and one pair of metadata.
    bytes.extend([1u64, 1].map(u64::to_le_bytes).concat());
    bytes.extend([string("general.architecture"), STRING.to_le_bytes().to_vec(), string("llama")].concat());
    bytes.extend(string("squares"));
    bytes.extend(2u32.to_le_bytes());
    // The length of a row comes first.
    bytes.extend([100u64, 60].map(u64::to_le_bytes).concat());
    bytes.extend(F32.to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
    bytes.extend((0..6000u16).flat_map(|number| (f32::from(number) * f32::from(number)).to_le_bytes()));
    bytes
}

#[test]
fn a_model_in_gguf_is_mapped_at_its_path() {
    let Some(python) = python() else { return };
    if CommandOutput::of(strict(&python).args(["-c", "import gguf"])).status != 0 {
        skip("a model in GGUF: the Python of scripts/install-deps has no package gguf");
        return;
    }
    let folder = Scratch::new("gguf-model");
    let (path, files) = (folder.path("model.gguf"), folder.path("shared"));
    std::fs::write(&path, squares()).expect("the folder is writable");
    // The package maps the file.
    let script = "
import gguf, numpy, os, sys
path = sys.argv[1] + '/model.gguf'
reader = gguf.GGUFReader(path)
(tensor,) = reader.tensors
squares = numpy.arange(6000, dtype='f4').reshape(60, 100) ** 2
mapped = [line for line in open('/proc/self/maps') if '/memfd:hostbuf:' in line and '/files/' in line]
version, architecture = reader.fields['GGUF.version'].contents(), reader.fields['general.architecture'].contents()
equal = (tensor.data == squares).all()
# One write: the processes share standard output, and Python may run unbuffered.
sys.stdout.write(f'{version} {architecture} {tensor.name} {equal} {len(mapped)} {os.path.islink(path)}\\n')
";
    let mut command = std::process::Command::new(hostbuf());
    command.args(["run", "--launcher", "local", "-n", "2", "--load", &path, "--as-files", &files, "--"]);
    command.arg(python).args(["-c", script, &files]);
    let outcome = CommandOutput::of(&mut command).ok();
    assert_eq!(outcome.stdout, "3 llama squares True 1 True\n".repeat(2));
    assert!(!std::path::Path::new(&files).exists());
}
