//! `hostbuf bench`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use hostbuf_tests::{CommandOutput, Scratch, fixture, hostbuf, skip};
use nix::sys::stat::Mode;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::unistd::mkfifo;
use serde_json::Value;

use crate::space::Cgroup;

const BACKENDS: [&str; 5] = ["posix", "direct", "uring", "mmap", "auto"];

fn bench(arguments: &[&str]) -> CommandOutput {
    CommandOutput::of(Command::new(hostbuf()).arg("bench").args(arguments))
}

fn bench_json(arguments: &[&str]) -> Value {
    let output = bench(&[&["--json"], arguments].concat()).ok();
    serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", output.stdout))
}

/// Writes a file of `mebibytes` MiB, and returns its path and its content.
fn write(folder: &Scratch, name: &str, mebibytes: usize) -> (String, Vec<u8>) {
    let bytes: Vec<u8> = (0..mebibytes << 20).map(|at| (at * 7 / 5) as u8).collect();
    fs::write(folder.path(name), &bytes).expect("the folder is writable");
    (folder.path(name), bytes)
}

/// Returns whether files of the folder have no disk, in which case there is nothing cold.
fn is_in_memory(folder: &Scratch) -> bool {
    let is_tmpfs = statfs(&folder.0).expect("it exists").filesystem_type() == TMPFS_MAGIC;
    if is_tmpfs {
        skip("reads from a disk: target/ is on tmpfs");
    }
    is_tmpfs
}

/// Returns the rows with a state of the page cache, in the order of their backends.
fn rows<'a>(report: &'a Value, to: &str, page_cache: &str) -> Vec<&'a Value> {
    let all = report["rows"].as_array().expect("a list").iter();
    let found: Vec<&Value> = all.filter(|row| row["to"] == to && row["page_cache"] == page_cache).collect();
    let backends: Vec<&Value> = found.iter().map(|row| &row["backend"]).collect();
    assert!(found.is_empty() || backends == BACKENDS, "{report:#}");
    found
}

/// Checks that a row has figures of so many rounds, or else the reason of a refusal.
fn check_row(row: &Value, rounds: usize) {
    let of_rounds = row["rounds_bytes_per_s"].as_array().expect("a list");
    if let Some(refusal) = row["refusal"].as_str() {
        assert!(!refusal.is_empty() && row["bytes_per_s"].is_null() && of_rounds.is_empty(), "{row:#}");
        return;
    }
    assert_eq!(of_rounds.len(), rounds, "{row:#}");
    assert!(of_rounds.contains(&row["bytes_per_s"]), "{row:#}");
    assert!(row["bytes_per_s"].as_f64() > Some(0.0) && row["cpu_s_per_gib"].as_f64() >= Some(0.0), "{row:#}");
    let bounds = ["disk", "cores", "GPU", "slots"];
    assert!(bounds.iter().any(|bound| row["bound_by"] == *bound), "{row:#}");
}

#[test]
fn each_backend_is_measured_with_a_cold_and_a_warm_page_cache() {
    let folder = Scratch::new("bench-command");
    let (path, bytes) = write(&folder, "a", 16);
    let written = fs::metadata(&path).expect("it exists").modified().expect("a time");
    if is_in_memory(&folder) {
        return;
    }
    let text = bench(&[&path, "--rounds", "2", "--threads", "3"]).ok().stdout;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "hostbuf bench: 16 MiB in 1 file, 2 rounds, 3 threads");
    assert!(lines[1].contains("TO") && lines[1].contains("CPU s/GiB"), "{text}");
    for state in ["cold", "warm"] {
        for backend in BACKENDS {
            let start = format!("the host {state} {backend} ");
            let normal = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(lines.iter().any(|line| normal(line).starts_with(&start)), "{start}: {text}");
        }
    }
    let best = lines.last().expect("there are lines");
    assert!(best.starts_with("best to the host: ") && best.contains(" with a cold page cache ("), "{text}");
    assert!(best.contains(" with a warm page cache ("), "{text}");
    assert!(fs::read(&path).expect("it exists") == bytes, "the file has changed");
    assert_eq!(fs::metadata(&path).expect("it exists").modified().expect("a time"), written);
}

#[test]
fn json_has_the_figures_of_all_rounds() {
    let folder = Scratch::new("bench-command-json");
    let ((first, _), (second, _)) = (write(&folder, "a", 5), write(&folder, "b", 13));
    let report = bench_json(&["--rounds", "2", "--bytes", "16M", &first, &second]);
    assert_eq!((&report["read_bytes"], &report["rounds"]), (&(16 << 20).into(), &2.into()));
    let files = report["files"].as_array().expect("a list");
    assert_eq!((&files[0]["read_bytes"], &files[1]["read_bytes"]), (&(5 << 20).into(), &(11 << 20).into()));
    assert_eq!((&files[1]["path"], &files[1]["bytes"]), (&second.into(), &(13 << 20).into()));
    let cold = rows(&report, "the host", "cold");
    let warm = rows(&report, "the host", "warm");
    assert_eq!(cold.is_empty(), is_in_memory(&folder), "{report:#}");
    assert_eq!(warm.len(), BACKENDS.len(), "{report:#}");
    cold.iter().chain(&warm).for_each(|row| check_row(row, 2));
    let best = report["best"].as_array().expect("a list");
    assert_eq!(best.len(), if cold.is_empty() { 1 } else { 2 }, "{report:#}");
    for one in best {
        let of_state = rows(&report, "the host", one["page_cache"].as_str().expect("a text"));
        let rate = |row: &&Value| row["bytes_per_s"].as_f64();
        let requested = of_state.iter().filter(|row| row["backend"] != "auto");
        assert_eq!(requested.filter_map(rate).fold(0.0, f64::max), one["bytes_per_s"], "{report:#}");
        assert_eq!(of_state[4]["bytes_per_s"], one["auto_bytes_per_s"], "{report:#}");
    }
    let text = bench(&["--rounds", "1", "--bytes", "16M", &folder.path("a"), &folder.path("b")]).ok().stdout;
    assert!(text.starts_with("hostbuf bench: the first 16 MiB of 18 MiB in 2 files, 1 round, "), "{text}");
}

#[test]
fn small_files_are_measured_and_not_compared() {
    let folder = Scratch::new("bench-command-small");
    let (path, _) = write(&folder, "a", 16);
    let limits = ["--rounds", "1", "--bytes", "15M"];
    let report = bench_json(&[&limits[..], &[&path]].concat());
    assert_eq!(report["best"].as_array().map(Vec::len), Some(0), "{report:#}");
    rows(&report, "the host", "warm").iter().for_each(|row| check_row(row, 1));
    let text = bench(&[&limits[..], &[&path]].concat()).ok().stdout;
    let last = text.lines().last().expect("there are lines");
    assert!(
        last.starts_with("too few bytes to compare the backends: 15 MiB read, at least 16 MiB needed: "),
        "{text}"
    );
    assert!(!text.contains("request ") && !text.contains("best to "), "{text}");
    let enough = bench(&["--rounds", "1", &path]).ok().stdout;
    assert!(!enough.contains("too small") && enough.contains("best to the host: "), "{enough}");
}

#[test]
fn a_refused_backend_has_its_reason() {
    let folder = Scratch::new("bench-command-refused");
    let (path, _) = write(&folder, "a", 1);
    if is_in_memory(&folder) {
        return;
    }
    let report = bench_json(&["--rounds", "1", &path]);
    let mapped = rows(&report, "the host", "warm")[3];
    let refusal = mapped["refusal"].as_str().expect("a disk's files are not mapped");
    assert!(refusal.starts_with("only files on tmpfs are mapped"), "{refusal}");
    check_row(mapped, 1);
    let text = bench(&["--rounds", "1", &path]).ok().stdout;
    assert!(text.contains(refusal), "{text}");
}

#[test]
fn a_file_in_memory_has_no_cold_page_cache() {
    let memory = Path::new("/dev/shm");
    if !statfs(memory).is_ok_and(|system| system.filesystem_type() == TMPFS_MAGIC) {
        skip("a file in memory: /dev/shm is no tmpfs");
        return;
    }
    let folder = Scratch(memory.join(format!("hostbuf-bench-command-{}", std::process::id())));
    fs::create_dir(&folder.0).expect("a new folder");
    let (path, bytes) = write(&folder, "a", 4);
    let report = bench_json(&["--rounds", "1", &path]);
    assert!(rows(&report, "the host", "cold").is_empty(), "{report:#}");
    let notes = report["notes"].to_string();
    assert!(notes.contains("not measured with a cold page cache: the files are in memory"), "{notes}");
    let warm = rows(&report, "the host", "warm");
    warm.iter().for_each(|row| check_row(row, 1));
    // Older kernels refuse O_DIRECT on tmpfs.
    for measured in ["posix", "mmap", "auto"] {
        let row = warm.iter().find(|row| row["backend"] == measured).expect("all backends are there");
        assert!(row["refusal"].is_null() && row["bound_by"] != "disk", "{row:#}");
    }
    assert_eq!((&warm[4]["used"][0], &warm[3]["used"][0]), (&"posix".into(), &"mmap".into()));
    assert!(fs::read(&path).expect("it exists") == bytes, "the file has changed");
}

#[test]
fn the_memory_does_not_grow_with_the_file() {
    let folder = Scratch::new("bench-command-memory");
    let path = folder.path("sparse");
    let file = fs::File::create(&path).expect("the folder is writable");
    file.set_len(512 << 20).expect("a hole needs no space");
    let mut command = Command::new("sh");
    // The limit is in KiB: 256 MiB of data for a file of 512 MiB.
    command.args(["-c", r#"ulimit -d 262144 && exec "$0" "$@""#]).arg(hostbuf());
    command.args(["bench", "--rounds", "1", "--threads", "2"]).arg(&path);
    let text = CommandOutput::of(&mut command).ok().stdout;
    assert!(text.starts_with("hostbuf bench: 512 MiB in 1 file, "), "{text}");
}

/// Checks that the command states the request, what is available, the limit and a remedy.
#[track_caller]
fn assert_no_space(outcome: &CommandOutput, limit: &str) {
    assert_eq!((outcome.status, outcome.stdout.as_str()), (83, ""), "{outcome:?}");
    let words = ["hostbuf bench: not enough memory on ", " requested, ", " available (", limit, ": r"];
    assert!(words.iter().all(|word| outcome.stderr.contains(word)), "{outcome:?}");
    assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
}

#[test]
fn a_limit_on_the_address_space_gives_one_line_or_suffices() {
    let folder = Scratch::new("bench-command-address-space");
    let (path, _) = write(&folder, "a", 1);
    let limited = |kibibytes: u32| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!(r#"ulimit -v {kibibytes} && exec "$0" "$@""#)]).arg(hostbuf());
        command.args(["bench", "--rounds", "1", "--threads", "2"]).arg(&path);
        CommandOutput::of(&mut command)
    };
    let mut statuses = Vec::new();
    for mebibytes in (100..=400).step_by(20) {
        let outcome = limited(mebibytes << 10);
        statuses.push(outcome.status);
        if outcome.status != 0 {
            assert_no_space(&outcome, "the address space of a process (ulimit -v)");
        }
    }
    assert!(statuses.first() == Some(&83) && statuses.last() == Some(&0), "{statuses:?}");
}

#[test]
fn a_limit_of_a_cgroup_gives_one_line() {
    let folder = Scratch::new("bench-command-cgroup");
    let (path, _) = write(&folder, "a", 1);
    let Some(cgroup) = Cgroup::new("bench", 100 << 20) else { return };
    let mut command = Command::new(hostbuf());
    command.args(["bench", "--rounds", "1"]).arg(&path);
    assert_no_space(&CommandOutput::of(cgroup.enter(&mut command)), "the memory cgroup ");
}

#[test]
fn bad_input_gives_one_line() {
    let folder = Scratch::new("bench-command-bad");
    let (good, _) = write(&folder, "good", 1);
    let (good, empty, pipe) = (good.as_str(), folder.path("empty"), folder.path("pipe"));
    fs::write(&empty, []).expect("the folder is writable");
    mkfifo(pipe.as_str(), Mode::S_IRWXU).expect("the folder is writable");
    let folder_path = folder.0.to_str().expect("UTF-8");
    let cases: [(&[&str], i32, &str); 8] = [
        (&["/no/such/file"], 1, "/no/such/file: No such file or directory (os error 2): check the path"),
        (&[good, &empty], 1, "is empty: name a file of some GiB"),
        (&[folder_path], 1, "is a folder: name files in it"),
        (&[&pipe], 1, "is not a regular file"),
        (&[], 2, "<FILE>"),
        (&["--rounds", "0", good], 2, "--rounds"),
        (&["--threads", "5000", good], 2, "--threads"),
        (&["--bytes", "0", good], 2, "invalid --bytes 0: expected a size such as 8G"),
    ];
    for (arguments, status, text) in cases {
        let outcome = bench(arguments);
        assert_eq!((outcome.status, outcome.stdout.as_str()), (status, ""), "{arguments:?}");
        assert!(outcome.stderr.contains(text) && outcome.stderr.lines().count() == 1, "{outcome:?}");
    }
}

#[test]
fn files_are_read_to_a_gpu() {
    let folder = Scratch::new("bench-command-gpu");
    let driver =
        fixture("cc", "fake_cuda.c", &["-shared", "-fPIC"]).expect("a C compiler built this test's crate");
    for library in ["libcuda.so.1", "libcuda.so"] {
        symlink(&driver, folder.path(library)).expect("it is new");
    }
    let (path, _) = write(&folder, "a", 40);
    let with_driver = |arguments: &[&str]| {
        let mut command = Command::new(hostbuf());
        command.args(["bench", "--rounds", "1"]).args(arguments).arg(&path);
        CommandOutput::of(command.env("LD_LIBRARY_PATH", &folder.0))
    };
    let output = with_driver(&["--gpu", "0", "--json"]).ok();
    let report: Value = serde_json::from_str(&output.stdout).expect("JSON");
    let warm = rows(&report, "GPU 0", "warm");
    assert_eq!(warm.len(), BACKENDS.len(), "{report:#}");
    warm.iter().for_each(|row| check_row(row, 1));
    assert!(warm[0]["refusal"].is_null() && warm[4]["refusal"].is_null(), "{report:#}");
    assert_eq!(rows(&report, "the host", "warm").len(), BACKENDS.len(), "{report:#}");
    let text = with_driver(&["--gpu", "0"]).ok().stdout;
    let best = |to: &str| text.lines().filter(|line| line.starts_with(&format!("best to {to}: "))).count();
    assert_eq!((best("the host"), best("GPU 0")), (1, 1), "{text}");
    let missing = with_driver(&["--gpu", "99"]);
    assert_eq!((missing.status, missing.stdout.as_str()), (2, ""), "{missing:?}");
    assert!(missing.stderr.contains("this process sees no GPU 99"), "{missing:?}");
    assert_eq!(missing.stderr.lines().count(), 1, "{missing:?}");
}

/// The delay of a copy is long beside the read of as many bytes.
#[test]
fn slow_copies_are_bound_by_the_gpu() {
    let folder = Scratch::new("bench-command-slow-gpu");
    let driver =
        fixture("cc", "fake_cuda.c", &["-shared", "-fPIC"]).expect("a C compiler built this test's crate");
    for library in ["libcuda.so.1", "libcuda.so"] {
        symlink(&driver, folder.path(library)).expect("it is new");
    }
    let (path, _) = write(&folder, "a", 16);
    let mut command = Command::new(hostbuf());
    command.args(["bench", "--rounds", "1", "--gpu", "0", "--json"]).arg(&path);
    command.env("LD_LIBRARY_PATH", &folder.0).env("FAKE_CUDA_COPY_MS", "30");
    let report: Value = serde_json::from_str(&CommandOutput::of(&mut command).ok().stdout).expect("JSON");
    let warm = rows(&report, "GPU 0", "warm");
    let posix = warm.first().expect("all backends are there");
    assert_eq!((&posix["bound"], &posix["bound_by"]), (&"device".into(), &"GPU".into()), "{report:#}");
}
