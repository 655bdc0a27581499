//! `hostbuf load` names what bounds a load: reads and copies are slowed down in turn.
//! [`loading`](crate::loading) has a slow exchange between hosts.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::process::Command;

use hostbuf_tests::{CommandOutput, Scratch, fixture, hostbuf};

/// The delay of reads that sleep: sixteen of 4 MiB. Without it each takes 1 to 7 ms.
const SLOW_DISK: [(&str, &str); 1] = [("SLOW_READS_MS", "80")];
/// The delay of reads that compute.
const SLOW_CORES: [(&str, &str); 2] = [("SLOW_READS_MS", "80"), ("SLOW_READS_SPIN", "1")];
/// The delay of copies to the GPU: four of 16 MiB. Without it each takes 10 to 20 ms.
const SLOW_COPIES: [(&str, &str); 1] = [("FAKE_CUDA_COPY_MS", "300")];

/// Returns the header of a file of numpy that has `bytes` bytes with it.
fn npy_header(bytes: usize) -> Vec<u8> {
    const LENGTH: usize = 128;
    let elements = bytes - LENGTH;
    let text = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({elements},), }}");
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend((LENGTH as u16 - 10).to_le_bytes());
    header.extend(text.as_bytes());
    header.resize(LENGTH, b' ');
    header
}

/// A file of which only the header has blocks on a disk, and a fake driver.
struct SlowLoad(Scratch);

impl SlowLoad {
    fn new(name: &str) -> SlowLoad {
        let folder = Scratch::new(name);
        let mut file = File::create(folder.path("a.npy")).expect("the folder is writable");
        file.write_all(&npy_header(64 << 20)).expect("the folder is writable");
        file.set_len(64 << 20).expect("a hole needs no space");
        let library = |source| fixture("cc", source, &["-shared", "-fPIC"]).expect("a C compiler is there");
        let driver = library("fake_cuda.c");
        for (target, name) in
            [(&driver, "libcuda.so.1"), (&driver, "libcuda.so"), (&library("slow_reads.c"), "slow_reads.so")]
        {
            symlink(target, folder.path(name)).expect("it is new");
        }
        SlowLoad(folder)
    }

    /// Loads the file by `command`, which runs `hostbuf load` with the arguments that follow.
    fn run(&self, command: &mut Command, slow: &[(&str, &str)], arguments: &[&str]) -> CommandOutput {
        command.args(["load", "--backend", "posix", "--threads", "1"]).args(arguments);
        command.arg(self.0.path("a.npy")).env("LD_LIBRARY_PATH", &self.0.0);
        command.env("LD_PRELOAD", self.0.path("slow_reads.so"));
        CommandOutput::of(command.envs(slow.iter().copied())).ok()
    }

    /// Returns the last word of the line of a load.
    fn bound(&self, slow: &[(&str, &str)], arguments: &[&str]) -> String {
        let line = self.run(&mut Command::new(hostbuf()), slow, arguments).stdout;
        println!("{line}");
        let (_, bound) = line.trim_end().rsplit_once(" GB/s, bound by the ").expect("the line has a bound");
        bound.to_owned()
    }

    /// Returns what bounds a load by each state of its bar on a terminal.
    fn bounds_of_bar(&self, slow: &[(&str, &str)], arguments: &[&str]) -> Vec<String> {
        let terminal = fixture("cc", "terminal.c", &[]).expect("a C compiler is there");
        let mut command = Command::new(terminal);
        // The terminal stays until the command ends.
        command.arg(self.0.path("never")).arg(hostbuf());
        // Without it, as under cron, no bar is drawn.
        command.env("TERM", "xterm");
        let text = self.run(&mut command, slow, arguments).stdout;
        println!("{text}");
        let states = text.split("hostbuf: loading [").skip(1);
        let bound =
            |state: &str| Some(state.split_once(" GB/s, bound by the ")?.1.split_once(',')?.0.to_owned());
        states.filter_map(bound).collect()
    }
}

#[test]
fn slow_reads_are_bound_by_the_disk() {
    let load = SlowLoad::new("bound-disk");
    assert_eq!(load.bound(&SLOW_DISK, &[]), "disk");
    assert_eq!(load.bound(&SLOW_DISK, &["--gpu", "0"]), "disk");
}

#[test]
fn reads_that_compute_are_bound_by_the_cores() {
    let load = SlowLoad::new("bound-cores");
    assert_eq!(load.bound(&SLOW_CORES, &[]), "cores");
    assert_eq!(load.bound(&SLOW_CORES, &["--gpu", "0"]), "cores");
}

#[test]
fn slow_copies_are_bound_by_the_gpu() {
    let load = SlowLoad::new("bound-gpu");
    assert_eq!(load.bound(&SLOW_COPIES, &["--gpu", "0"]), "GPU");
}

#[test]
fn the_bar_names_the_bound() {
    let load = SlowLoad::new("bound-bar");
    for (slow, arguments, expected) in [
        (&SLOW_DISK[..], &[][..], "disk"),
        (&SLOW_CORES, &[], "cores"),
        (&SLOW_COPIES, &["--gpu", "0"], "GPU"),
        (&SLOW_DISK, &["--gpu", "0"], "disk"),
    ] {
        let bounds = load.bounds_of_bar(slow, arguments);
        assert!(!bounds.is_empty() && bounds.iter().all(|bound| bound == expected), "{expected}: {bounds:?}");
    }
}
