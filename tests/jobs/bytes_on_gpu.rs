//! The bytes that loads put on a GPU, with a fake driver whose GPU has memory of the host.

use std::fs;
use std::process::Command;

use hostbuf_tests::fake_cuda::{COPY_MS, FREED, install_fake_cuda};
use hostbuf_tests::{CommandOutput, Scratch, hostbuf};

use crate::loaded_tensors::{npy, safetensors};

/// The alignment of files in the memory, and that of the data of a shifted file.
const ALIGNMENTS: [usize; 2] = [4096, 64];

fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|at| ((at * 31 + at / 4096 + seed) % 251) as u8).collect()
}

/// Returns files one behind the other as a buffer has them. `data` is the number of bytes of data
/// at the end of each.
fn region(files: &[(Vec<u8>, usize)]) -> Vec<u8> {
    let mut region = Vec::new();
    for (file, data) in files {
        let header = file.len() - data;
        let shift =
            if header.is_multiple_of(8) { 0 } else { header.next_multiple_of(ALIGNMENTS[1]) - header };
        region.resize(region.len().next_multiple_of(ALIGNMENTS[0]) + shift, 0);
        region.extend_from_slice(file);
    }
    region
}

#[test]
fn the_command_copies_each_byte_to_its_place() {
    let folder = Scratch::new("bytes-on-gpu");
    install_fake_cuda(&folder);
    // Three windows of 16 MiB. The header of the second file has an odd length.
    let lengths = [35 << 20, 300_003, 4097];
    let data: Vec<Vec<u8>> =
        lengths.into_iter().enumerate().map(|(seed, bytes)| pattern(bytes, seed)).collect();
    let contents = [safetensors("a", &data[0], 0), safetensors("b", &data[1], 3), npy(&data[2])];
    let files: Vec<(Vec<u8>, usize)> = contents.into_iter().zip(lengths).collect();
    let paths = ["a.safetensors", "b.safetensors", "c.npy"].map(|name| folder.path(name));
    for (path, (file, _)) in paths.iter().zip(&files) {
        fs::write(path, file).expect("the folder is writable");
    }
    let expected = region(&files);
    // Copies that take place in the call, and copies that take place while the command goes on.
    for delay in ["0", "30"] {
        let freed = folder.path(&format!("freed-{delay}"));
        let mut command = Command::new(hostbuf());
        command.args(["load", "--gpu", "0"]).args(&paths).env("LD_LIBRARY_PATH", &folder.0);
        let outcome = CommandOutput::of(command.env(FREED, &freed).env(COPY_MS, delay)).ok();
        assert!(outcome.stdout.contains("; on GPU 0 after "), "{outcome:?}");
        let found = fs::read(&freed).expect("the memory of the GPU was freed");
        assert_eq!(found.len(), expected.len(), "{outcome:?}");
        let wrong = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        assert_eq!(wrong, None, "{outcome:?}");
    }
}
