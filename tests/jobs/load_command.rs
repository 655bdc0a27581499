//! `hostbuf load`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use hostbuf_tests::{CommandOutput, Scratch, fixture, hostbuf};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Writes a safetensors file with one tensor of `numbers` 32-bit floats.
fn write_tensor(path: &str, name: &str, numbers: usize) {
    let bytes = 4 * numbers;
    let header = format!(r#"{{"{name}":{{"dtype":"F32","shape":[{numbers}],"data_offsets":[0,{bytes}]}}}}"#);
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend((0..bytes).map(|at| (at * 7 / 5) as u8));
    fs::write(path, file).expect("the folder is writable");
}

fn load(arguments: &[&str]) -> CommandOutput {
    CommandOutput::of(Command::new(hostbuf()).arg("load").args(arguments))
}

#[test]
fn files_are_loaded_and_the_rate_is_named() {
    let folder = Scratch::new("load-command");
    write_tensor(&folder.path("a.safetensors"), "first", 1 << 20);
    write_tensor(&folder.path("b.safetensors"), "second", 3);
    let path = folder.0.to_str().expect("UTF-8");
    let line = load(&[path]).ok().stdout;
    assert!(line.starts_with("hostbuf load: 2 tensors of 2 files, 4.0 MiB in "), "{line}");
    // Files that were just written may be in the page cache or not.
    let bounds = [" GB/s, bound by the disk\n", " GB/s, bound by the cores\n"];
    assert!(bounds.iter().any(|bound| line.ends_with(bound)), "{line}");
    assert_eq!(line.lines().count(), 1);
    let one = folder.path("b.safetensors");
    let one = one.as_str();
    let line = load(&["--backend", "posix", "--threads", "2", "--pages", "4k", one]).ok().stdout;
    assert!(line.starts_with("hostbuf load: 1 tensor of 1 file, "), "{line}");
}

#[test]
fn bad_input_gives_one_line() {
    let folder = Scratch::new("load-command-bad");
    let damaged = folder.path("damaged.safetensors");
    fs::write(&damaged, [255; 100]).expect("the folder is writable");
    let damaged = damaged.as_str();
    let empty = folder.path("empty");
    fs::create_dir(&empty).expect("the folder is writable");
    let archive = folder.path("arrays.npz");
    fs::write(&archive, b"PK\x03\x04 and more").expect("the folder is writable");
    let database = folder.path("hash.k2d");
    fs::write(&database, b"any bytes").expect("the folder is writable");
    let shards = folder.path("model.safetensors.index.json");
    fs::write(&shards, r#"{"weight_map":{}}"#).expect("the folder is writable");
    let hostile = folder.path("red\u{1b}[31m\nline.npy");
    fs::write(&hostile, [255; 100]).expect("the folder is writable");
    let cases: [(&[&str], i32, &str); 15] = [
        (&["/no/such/file"], 1, "/no/such/file: No such file"),
        (&[damaged], 1, "is damaged"),
        (&[hostile.as_str()], 1, r"/red\u{1b}[31m\nline.npy is damaged"),
        (&[empty.as_str()], 1, "neither an index"),
        (&[archive.as_str()], 1, "nor Arrow IPC: extract its arrays (unzip), and load the .npy files"),
        (&[database.as_str()], 1, "nor Arrow IPC: use `hostbuf run --load FILE --as-files DIR`"),
        (&[shards.as_str()], 1, "\"weight_map\" names no tensor"),
        (&[], 2, "<FILE>"),
        (&["--backend", "gds", damaged], 2, "expected auto, posix, direct, uring or mmap"),
        (&["--backend", "cufile", damaged], 2, "expected auto, posix, direct, uring or mmap"),
        (&["--pages", "3m", damaged], 2, "invalid pages"),
        (&["--threads", "0", damaged], 2, "0 is not in 1..=1024"),
        (&["--threads", "1025", damaged], 2, "1025 is not in 1..=1024"),
        (&["--gpu", "x", damaged], 2, "'x' for '--gpu <N>': expected the number of a GPU, such as 0"),
        (&["--gpu", "-1", damaged], 2, "see hostbuf load --help"),
    ];
    for (arguments, status, text) in cases {
        let outcome = load(arguments);
        assert_eq!((outcome.status, outcome.stdout.as_str()), (status, ""), "{arguments:?}");
        assert!(outcome.stderr.contains(text) && outcome.stderr.lines().count() == 1, "{outcome:?}");
    }
}

#[test]
fn the_memory_stays_until_a_signal_comes() {
    let folder = Scratch::new("load-command-keep");
    let path = folder.path("a.npy");
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }";
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend([1; 16]);
    fs::write(&path, file).expect("the folder is writable");
    let mut command = Command::new(hostbuf());
    let mut child =
        command.args(["load", "--keep"]).arg(&path).stdout(Stdio::piped()).spawn().expect("it starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let lines: Vec<String> = lines.take(2).map(|line| line.expect("UTF-8")).collect();
    assert!(lines[0].contains("1 tensor of 1 file"), "{lines:?}");
    assert!(lines[1].contains(&format!("process {} ", child.id())), "{lines:?}");
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("it runs");
    assert!(child.wait().expect("a child").success());
}

#[test]
fn a_gpu_copies_what_was_read() {
    let folder = Scratch::new("load-command-gpu");
    let driver =
        fixture("cc", "fake_cuda.c", &["-shared", "-fPIC"]).expect("a C compiler built this test's crate");
    for library in ["libcuda.so.1", "libcuda.so"] {
        symlink(&driver, folder.path(library)).expect("it is new");
    }
    let path = folder.path("a.safetensors");
    write_tensor(&path, "w", 10 << 20);
    let mut command = Command::new(hostbuf());
    command.args(["load", "--gpu", "0"]).arg(&path).env("LD_LIBRARY_PATH", &folder.0);
    let line = CommandOutput::of(&mut command).ok().stdout;
    assert!(line.contains("; on GPU 0 after "), "{line}");
    let mut missing = Command::new(hostbuf());
    missing.args(["load", "--gpu", "99"]).arg(&path).env("LD_LIBRARY_PATH", &folder.0);
    let outcome = CommandOutput::of(&mut missing);
    assert!(outcome.status != 0 && outcome.stderr.lines().count() == 1, "{outcome:?}");
}
