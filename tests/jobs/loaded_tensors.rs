//! Files of tensors that a job has in a buffer before `main`: `--load` without `--as-files`.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use hostbuf_tests::{
    CommandOutput, Scratch, can_simulate, eventually, flavours, hostbuf, local, program, run, simulated,
};
use serde_json::{Value, json};
use xxhash_rust::xxh3::Xxh3;

use crate::arguments::one_line;
use crate::other_user::OtherUser;
use crate::running_job::{ARRIVAL, RunningJob, SOON};

/// Files of tensors, and the checksum of the names and the bytes of all tensors.
pub struct TensorFiles {
    pub scratch: Scratch,
    /// A folder with an index and two shards, and a file of numpy.
    pub paths: Vec<String>,
    digest: u64,
    bytes: u64,
}

/// Returns a file of safetensors with one tensor of bytes, whose header has a multiple of 8 bytes
/// and `padding` more.
pub fn safetensors(name: &str, data: &[u8], padding: usize) -> Vec<u8> {
    let text = format!(r#"{{"{name}":{{"dtype":"U8","shape":[{0}],"data_offsets":[0,{0}]}}}}"#, data.len());
    let length = text.len().next_multiple_of(8) + padding;
    let mut bytes = (length as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes.resize(8 + length, b' ');
    bytes.extend_from_slice(data);
    bytes
}

/// Returns a file of numpy with one dimension of bytes.
pub fn npy(data: &[u8]) -> Vec<u8> {
    let mut text = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({},), }}", data.len());
    while (10 + text.len() + 1) % 64 != 0 {
        text.push(' ');
    }
    text.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend_from_slice(&(text.len() as u16).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes.extend_from_slice(data);
    bytes
}

impl TensorFiles {
    /// Makes three files, of which the largest has `bytes` bytes of data.
    pub fn new(test: &str, bytes: usize) -> TensorFiles {
        let scratch = Scratch::new(test);
        let folder = PathBuf::from(scratch.path("model"));
        fs::create_dir(&folder).expect("it is new");
        let data: Vec<Vec<u8>> = [bytes, bytes / 3 + 1, 4097]
            .into_iter()
            .enumerate()
            .map(|(seed, length)| (0..length).map(|at| ((at * 31 + at / 4096 + seed) % 251) as u8).collect())
            .collect();
        let contents = [safetensors("a", &data[0], 0), safetensors("b", &data[1], 3), npy(&data[2])];
        let index = r#"{"weight_map":{"a":"1.safetensors","b":"2.safetensors"}}"#;
        let paths = [folder.join("1.safetensors"), folder.join("2.safetensors"), scratch.0.join("c.npy")];
        fs::write(folder.join("model.safetensors.index.json"), index).expect("target/ is writable");
        let mut hash = Xxh3::new();
        let mut all = 0;
        for ((path, file), (name, data)) in paths.iter().zip(&contents).zip(["a", "b", "c"].iter().zip(&data))
        {
            fs::write(path, file).expect("target/ is writable");
            all += file.len() as u64;
            hash.update(name.as_bytes());
            hash.update(data);
        }
        let paths = vec![scratch.path("model"), scratch.path("c.npy")];
        TensorFiles { scratch, paths, digest: hash.digest(), bytes: all }
    }

    /// Returns the options that load the files.
    pub fn options(&self) -> Vec<&str> {
        ["--load"].into_iter().chain(self.paths.iter().map(String::as_str)).collect()
    }

    /// Runs ranks that print what they find.
    fn run(&self, ranks: usize, more: &[&str], mode: &str) -> CommandOutput {
        let mut command = Command::new(hostbuf());
        command.args(["run", "--launcher", "local", "-n", &ranks.to_string()]).args(self.options());
        command.args(more).arg("--").arg(program("loaded_tensors")).arg(mode);
        CommandOutput::of(&mut command)
    }

    /// Asserts that all ranks see all tensors at one address, read once in the job.
    #[track_caller]
    pub fn assert_complete(&self, lines: &[String], ranks: usize) {
        assert_eq!(lines.len(), ranks, "{lines:#?}");
        let address = word(&lines[0], "at");
        for line in lines {
            assert_eq!(word(line, "digest"), format!("{:016x}", self.digest), "{line}");
            assert_eq!((word(line, "at"), word(line, "tensors")), (address, "3"), "{line}");
            assert_eq!(number(line, "job"), self.bytes, "{line}");
            // A rank itself reads nothing but a few small files of /proc.
            assert!(number(line, "read") < 256 << 10, "{line}");
        }
    }
}

/// Returns the word behind a word of a line.
#[track_caller]
pub fn word<'l>(line: &'l str, name: &str) -> &'l str {
    let mut words = line.split(' ').skip_while(|found| *found != name);
    words.nth(1).unwrap_or_else(|| panic!("no {name} in {line}"))
}

#[track_caller]
fn number(line: &str, name: &str) -> u64 {
    word(line, name).parse().unwrap_or_else(|_| panic!("no number {name} in {line}"))
}

/// Returns the address behind a word of a line.
#[track_caller]
fn hex(line: &str, name: &str) -> u64 {
    let text = word(line, name);
    let digits = text.strip_prefix("0x").unwrap_or_else(|| panic!("no address {name} in {line}"));
    u64::from_str_radix(digits, 16).unwrap_or_else(|_| panic!("no address {name} in {line}"))
}

fn lines(outcome: &CommandOutput) -> Vec<String> {
    outcome.stdout.lines().map(str::to_owned).collect()
}

#[test]
fn eight_ranks_find_the_tensors_by_name() {
    let files = TensorFiles::new("tensors-found", 20 << 20);
    let outcome = files.run(8, &["--verbose"], "once").ok();
    let found = lines(&outcome);
    files.assert_complete(&found, 8);
    // It is the only buffer, so the environment has its address.
    for line in &found {
        assert_eq!((word(line, "buffers"), hex(line, "address")), ("loaded", hex(line, "at")), "{line}");
        assert_eq!((number(line, "counted"), number(line, "received")), (files.bytes, 0), "{line}");
    }
    let said = outcome.stderr.lines().find(|line| line.starts_with("hostbuf: loaded on "));
    let said = said.unwrap_or_else(|| panic!("{outcome:?}"));
    assert!(said.contains(": 3 tensors of 3 files, ") && said.contains(" a second)"), "{said}");
}

#[test]
fn other_buffers_come_first_and_the_tensors_can_be_frozen() {
    let files = TensorFiles::new("tensors-frozen", 1 << 20);
    let more = ["--size", "3M", "--buffer", "name=x,size=1M", "--pages", "4k"];
    let outcome = files.run(4, &more, "freeze").ok();
    let found = lines(&outcome);
    files.assert_complete(&found, 4);
    assert!(found.iter().all(|line| word(line, "buffers") == "default,x,loaded"), "{found:#?}");
    assert!(found.iter().all(|line| hex(line, "address") != hex(line, "at")), "{found:#?}");
    // All buffers are registered.
    if crate::registered::can_register() {
        let outcome = files.run(2, &["--register", "mlock"], "once").ok();
        files.assert_complete(&lines(&outcome), 2);
    }
}

#[test]
fn a_job_without_loaded_files_has_no_tensors() {
    let program = program("loaded_tensors");
    let outcome = local(2, "1M", &[], &[program.to_str().expect("UTF-8"), "once"]).ok();
    assert_eq!(outcome.stdout, "no tensors\nno tensors\n");
}

#[test]
fn the_agent_reads_each_byte_once() {
    let files = TensorFiles::new("tensors-once", 24 << 20);
    let program = program("loaded_tensors");
    let more = [&["-n", "3"], &files.options()[..]].concat();
    let words = [program.to_str().expect("UTF-8"), "wait"];
    let mut job = RunningJob::start("tensors-once-job", "size=1M", &more, &words, |_, _| {});
    eventually("the lines of all ranks", ARRIVAL, || job.out().lines().count() == 3);
    files.assert_complete(&job.out().lines().map(str::to_owned).collect::<Vec<_>>(), 3);
    let agent = job.agent().expect("the agent runs");
    let io = fs::read_to_string(format!("/proc/{agent}/io")).expect("the kernel counts reads");
    let read = io.lines().find_map(|line| line.strip_prefix("rchar: ")).expect("a count");
    let read: u64 = read.parse().expect("a number");
    // The headers are read before, and the agent reads small files of /proc and /sys.
    assert!((files.bytes..files.bytes + (1 << 20)).contains(&read), "{read} of {}", files.bytes);
    let report = files_of(&job);
    assert_eq!((&report["state"], &report["bytes"]), (&json!("complete"), &json!(files.bytes)), "{report}");
    assert_eq!(report["loaded_bytes"], report["bytes"], "{report}");
    let shown: Vec<&Value> = report["files"].as_array().expect("a list").iter().collect();
    let paths = ["model/1.safetensors", "model/2.safetensors", "c.npy"].map(|name| files.scratch.path(name));
    assert_eq!(shown.len(), paths.len(), "{report}");
    for (file, path) in shown.iter().zip(&paths) {
        let bytes = fs::metadata(path).expect("it is there").len();
        assert_eq!((&file["path"], &file["bytes"]), (&json!(path), &json!(bytes)), "{report}");
        assert!(file["page_bytes"].as_u64() >= Some(4096), "{report}");
    }
    let text = run(&["stat"]).ok().stdout;
    let row = text.lines().find(|line| line.contains(&paths[0])).unwrap_or_else(|| panic!("{text}"));
    assert!(row.trim_end().ends_with("complete, 32.0 MiB in 3 files"), "{row}");
    job.launcher.kill().expect("it runs");
    job.end(SOON);
    job.leaves_nothing("a killed launcher");
}

/// Returns the files of a job in the report of `hostbuf stat`.
pub fn files_of(job: &RunningJob) -> Value {
    let report: Value = serde_json::from_str(&run(&["stat", "--json"]).ok().stdout).expect("JSON");
    let number = job.socket.rsplit('/').next().expect("the socket has the number of the job");
    let jobs = report["jobs"].as_array().expect("a list").iter();
    let found: Vec<&Value> = jobs.filter(|job| job["job"] == json!(number)).collect();
    assert_eq!(found.len(), 1, "{report}");
    found[0]["files"].clone()
}

#[test]
fn files_that_cannot_be_loaded_give_one_line() {
    let files = TensorFiles::new("tensors-errors", 5000);
    let inside = |name: &str| files.scratch.path(name);
    let write = |name: &str, bytes: &[u8]| {
        fs::write(inside(name), bytes).expect("target/ is writable");
        inside(name)
    };
    let whole = safetensors("w", &[1; 4096], 0);
    let cut = write("cut.safetensors", &whole[..2000]);
    let text = write("text.safetensors", b"\x08\0\0\0\0\0\0\0{ no json");
    let twice = write("twice.safetensors", &safetensors("a", &[1; 8], 0));
    let raw = write("hash.k2d", &[7; 100]);
    let huge = write("huge.safetensors", &{
        let length = 20u64 << 40;
        let text = format!(r#"{{"w":{{"dtype":"U8","shape":[{length}],"data_offsets":[0,{length}]}}}}"#);
        [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
    });
    let header = fs::metadata(&huge).expect("it is there").len();
    let sparse = File::options().write(true).open(&huge).and_then(|file| file.set_len(header + (20 << 40)));
    let pipe = inside("pipe");
    nix::unistd::mkfifo(pipe.as_str(), nix::sys::stat::Mode::S_IRUSR).expect("it is new");
    let empty = inside("empty");
    fs::create_dir(&empty).expect("it is new");
    let mut cases: Vec<(Vec<&str>, i32, &[&str])> = vec![
        (
            vec!["/no/such.safetensors"],
            85,
            &["cannot load files on ", "/no/such.safetensors", "No such file"],
        ),
        (vec![&cut], 2, &["cut.safetensors is damaged"]),
        (vec![&text], 2, &["text.safetensors is damaged"]),
        (vec![&files.paths[0], &twice], 2, &["has a tensor \"a\", and so has "]),
        (vec![&raw], 2, &["hash.k2d: it is neither safetensors nor npy nor Arrow IPC: add --as-files DIR"]),
        (vec![&pipe], 2, &["it is not a regular file"]),
        (vec![&empty], 85, &["has neither an index"]),
    ];
    match sparse {
        // The file system may not have files of that length.
        Err(_) => {}
        Ok(()) => {
            cases.push((vec![&huge], 83, &["not enough memory on ", "20.0 TiB requested", "limited by "]));
        }
    }
    let more: &[&str] = &["--buffer", "name=loaded,size=1M"];
    for (paths, status, words) in cases {
        let outcome = run(&[&["run", "--launcher", "local", "--load"][..], &paths, &["--", "true"]].concat());
        one_line(&outcome, status, words);
    }
    one_line(&files.run(1, more, "once"), 2, &["--load makes a buffer of this name: use another one"]);
    one_line(&files.run(1, &["--lazy"], "once"), 2, &["no buffer is requested"]);
}

#[test]
fn a_file_that_changes_while_it_is_loaded_ends_the_job() {
    let files = TensorFiles::new("tensors-changing", 48 << 20);
    let over = AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = File::options().write(true).open(files.scratch.path("model/1.safetensors"));
            let file = file.expect("it is there");
            while !over.load(Ordering::Relaxed) {
                file.set_modified(SystemTime::now()).expect("our file");
                std::thread::yield_now();
            }
        });
        let outcome = files.run(2, &[], "once");
        over.store(true, Ordering::Relaxed);
        outcome
    });
    one_line(&outcome, 90, &["cannot load files on ", "1.safetensors "]);
}

#[test]
fn an_ordinary_user_loads_files() {
    let Some(other) = OtherUser::new("loading files as another user") else { return };
    let files = TensorFiles::new("tensors-user", 1 << 20);
    let program = other.program(program("loaded_tensors").to_str().expect("UTF-8"));
    let folder = other.own_folder("files");
    let paths = ["model/1.safetensors", "model/2.safetensors", "c.npy"].map(|name| {
        let to = folder.join(name.rsplit('/').next().expect("a name"));
        fs::copy(files.scratch.path(name), &to).expect("there is room");
        to
    });
    let mut command = other.command(other.hostbuf());
    command.args(["run", "--launcher", "local", "-n", "2", "--load"]).args(&paths);
    command.args(["--", &program, "freeze"]);
    let outcome = CommandOutput::of(&mut command).ok();
    files.assert_complete(&lines(&outcome), 2);
}

#[test]
fn hosts_share_the_reading() {
    if !can_simulate() {
        return;
    }
    let files = TensorFiles::new("tensors-hosts", 48 << 20);
    let program = program("loaded_tensors");
    for flavour in flavours().iter().filter(|flavour| flavour.ends_with('4')) {
        let script = format!(
            "$HOSTBUF run -n 5 --host h0:2,h1:2,h2:1 --mpirun $MPIRUN {} -- {} once; echo status $?\n\
             $HOSTBUF run -n 3 --host h0:1,h1:1,h2:1 --mpirun $MPIRUN --load {} -- true; echo status $?\n",
            files.options().join(" "),
            program.display(),
            files.scratch.path("missing.npy")
        );
        let outcome = simulated(3, flavour, &script).ok();
        assert_eq!(outcome.lines("status "), ["0", "85"], "{flavour}: {outcome:?}");
        let found: Vec<String> =
            outcome.stdout.lines().filter(|line| line.starts_with("digest ")).map(str::to_owned).collect();
        files.assert_complete(&found, 5);
        // Each host has read its share, and received the rest.
        for line in &found {
            let (own, received) = (number(line, "counted"), number(line, "received"));
            // One or two of the five windows of 16 MiB, of which the last one is shorter.
            assert!(own > 0 && own.abs_diff(files.bytes / 3) <= 16 << 20, "{flavour}: {line}");
            assert!((own + received).abs_diff(files.bytes) < 3 * 4096, "{flavour}: {line}");
        }
    }
}
