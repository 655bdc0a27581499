//! Files that programs find by path, backed by the memory of the host: `--load` with `--as-files`.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use hostbuf_tests::{CommandOutput, Scratch, can_simulate, flavours, hostbuf, program, run, simulated};

use crate::arguments::one_line;

/// A folder of files to load, and a path for the folder of the job.
pub struct FilesToLoad {
    pub scratch: Scratch,
    paths: Vec<PathBuf>,
    bytes: u64,
}

impl FilesToLoad {
    /// Makes files of these names and lengths.
    pub fn new(test: &str, files: &[(&[u8], usize)]) -> FilesToLoad {
        let scratch = Scratch::new(test);
        fs::create_dir(scratch.path("in")).expect("it is new");
        let mut made = FilesToLoad { scratch, paths: Vec::new(), bytes: 0 };
        for (seed, (name, length)) in files.iter().enumerate() {
            let path = Path::new(&made.scratch.path("in")).join(OsStr::from_bytes(name));
            let contents: Vec<u8> =
                (0..*length).map(|at| ((at * 31 + at / 4096 + seed) % 251) as u8).collect();
            fs::write(&path, contents).expect("target/ is writable");
            made.paths.push(path);
            made.bytes += *length as u64;
        }
        made
    }

    /// Returns the path of the folder of the job.
    pub fn folder(&self) -> String {
        self.scratch.path("out")
    }

    /// Returns the command that runs `ranks` ranks of `program` with the files.
    fn command(&self, ranks: usize, more: &[&str], program: &[&OsStr]) -> Command {
        let mut command = Command::new(hostbuf());
        command.args(["run", "--launcher", "local", "-n", &ranks.to_string(), "--load"]).args(&self.paths);
        command.args(["--as-files", &self.folder()]).args(more).arg("--").args(program);
        command
    }

    fn run(&self, ranks: usize, more: &[&str], program: &[&str]) -> CommandOutput {
        let program: Vec<&OsStr> = program.iter().map(OsStr::new).collect();
        CommandOutput::of(&mut self.command(ranks, more, &program))
    }

    /// Runs the program that checks each byte.
    fn check(&self, ranks: usize, more: &[&str]) -> CommandOutput {
        let program = program("map_files");
        let originals = self.scratch.path("in");
        CommandOutput::of(&mut self.command(ranks, more, &[program.as_os_str(), OsStr::new(&originals)]))
    }
}

/// Returns the number behind a word of a line.
#[track_caller]
fn number(line: &str, word: &str) -> u64 {
    let mut words = line.split(' ').skip_while(|found| *found != word);
    words.nth(1).and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no {word} in {line}"))
}

#[test]
fn eight_ranks_map_one_copy_of_each_file() {
    let names: &[(&[u8], usize)] = &[
        (b"hash.k2d", (20 << 20) + 4097),
        (b"opts.k2d", 64),
        (b"a b'\"$x", 4096),
        (b"\xff\xfe.bin", 1),
        (b"line\nbreak", (2 << 20) - 1),
        (b"+20%h", 2 << 20),
        ("größe".as_bytes(), 5000),
        (b"empty", 0),
    ];
    let files = FilesToLoad::new("loaded-files", names);
    let outcome = files.check(8, &["--verbose"]).ok();
    let lines = outcome.lines("rank ");
    assert_eq!(lines.len(), 8, "{outcome:?}");
    let pages = names.iter().map(|(_, length)| length.next_multiple_of(4096) as u64).sum::<u64>();
    let mut shared = 0;
    for line in &lines {
        assert_eq!((number(line, "files"), number(line, "bytes")), (8, files.bytes), "{line}");
        // The kernel counts in whole KiB.
        assert_eq!(number(line, "rss"), pages, "{line}");
        shared += number(line, "pss");
    }
    assert!(shared <= pages && shared > pages - (64 << 10), "{shared} of {pages}: {lines:#?}");
    let said = outcome.stderr.lines().find(|line| line.starts_with("hostbuf: loaded on "));
    let said = said.unwrap_or_else(|| panic!("{outcome:?}"));
    for words in
        [": 8 files, ", ", read by ", " on huge pages; the agent's mapping of the largest file has pages of "]
    {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(!Path::new(&files.folder()).exists());
}

#[test]
fn files_and_buffers_may_be_combined_and_an_empty_folder_stays() {
    let files = FilesToLoad::new("files-and-buffer", &[(b"x", 3 << 20)]);
    fs::create_dir(files.folder()).expect("it is new");
    let outcome = files.check(2, &["--size", "1M"]).ok();
    assert_eq!(outcome.said(), [""; 0]);
    assert_eq!(fs::read_dir(files.folder()).expect("it stays").count(), 0);
    // Without a buffer, nothing is preloaded and no address is set.
    let script =
        "echo ${HOSTBUF_ADDRESS:-none} ${LD_PRELOAD:-none}; ls $HOSTBUF_FILES; echo kept >$HOSTBUF_FILES/new";
    let outcome = files.run(1, &[], &["sh", "-c", script]).ok();
    assert_eq!(outcome.stdout, "none none\nx\n");
    let kept = fs::read_to_string(files.scratch.path("out/new"));
    assert_eq!(kept.expect("a file of a rank stays"), "kept\n");
    assert_eq!(fs::read_dir(files.folder()).expect("it stays").count(), 1);
    // The status of the program is that of the job.
    fs::remove_file(files.scratch.path("out/new")).expect("it is there");
    assert_eq!(files.run(1, &[], &["sh", "-c", "exit 7"]).status, 7);
}

#[test]
fn stat_lists_the_files_of_a_job_without_a_buffer() {
    let files = FilesToLoad::new("files-stat", &[(b"x", 3 << 20), (b"y", 1 << 20)]);
    let stat = |more: &[&str]| {
        let script = format!("echo $HOSTBUF_JOB; {} stat; exit $?", hostbuf().display());
        let printed = files.run(1, more, &["sh", "-c", &script]).ok().stdout;
        let (socket, report) = printed.split_once('\n').expect("lines");
        // Other tests have jobs too.
        let head = format!("job {}  ", socket.rsplit('/').next().expect("a number"));
        let of_job = report.split("\n\n").find(|part| part.starts_with(&head));
        of_job.unwrap_or_else(|| panic!("{printed}")).to_owned()
    };
    let report = stat(&[]);
    let is_line = |words: &[&str]| report.lines().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(is_line(&[&files.scratch.path("in/x"), " 3 MiB ", " complete, 4 MiB in 2 files"]), "{report}");
    assert!(is_line(&[&files.scratch.path("in/y"), " 1 MiB "]), "{report}");
    assert!(is_line(&["  ranks: not listed, since the job has no buffer that they map"]), "{report}");
    assert!(!report.contains("BUFFER") && !report.contains("0 ranks"), "{report}");
    let report = stat(&["--size", "1M"]);
    assert!(report.contains("BUFFER") && report.contains("  1 rank: sh "), "{report}");
}

#[test]
fn a_program_with_a_library_finds_that_there_is_no_buffer() {
    let files = FilesToLoad::new("files-attach", &[(b"x", 3)]);
    let probe = program("job_probe");
    let outcome = files.run(1, &[], &[probe.to_str().expect("UTF-8"), "touch"]);
    assert!(outcome.stderr.contains("the job has no buffers: add --size 2G to `hostbuf run`"), "{outcome:?}");
}

#[test]
fn invalid_arguments_are_refused_before_anything_starts() {
    let files = FilesToLoad::new("files-arguments", &[(b"x", 3)]);
    let (file, folder) = (files.paths[0].to_str().expect("UTF-8"), files.folder());
    for (words, expected) in [
        (&["--load", file][..], &["--load ", "add --as-files DIR"][..]),
        (&["--as-files", &folder], &["--as-files ", "add --load FILE..."]),
        (&["--load", file, file, "--as-files", &folder], &["have one name", "rename one"]),
        (&["--load", "/", "--as-files", &folder], &["a path without a name of a file"]),
        (&["--load", "", "--as-files", &folder], &["--load"]),
        (&["--load", file, "--as-files", "/tmp/%x"], &["expected h or % behind each %"]),
        (&["--load", file, "--as-files", &folder, "--register", "mlock"], &["no buffer is requested"]),
        (&["--load", file, "--as-files", &folder, "--lazy"], &["no buffer is requested"]),
    ] {
        let outcome = run(&[&["run", "--launcher", "local"], words, &["--", "true"]].concat());
        one_line(&outcome, 2, expected);
    }
    let outcome = run(&["run", "--launcher", "local", "--load", "--as-files", &folder, "--", "true"]);
    assert_eq!(outcome.status, 2, "{outcome:?}");
    let outcome = run(&["run", "--as-files", &folder, "--load", file, "true"]);
    one_line(&outcome, 2, &["<PROGRAM>", "write -- between the files of --load and the program"]);
    // The option may be repeated, and other options may follow.
    let more =
        ["run", "--load", file, "--launcher", "local", "--load", "/etc/passwd", "--as-files", &folder, "--"];
    let outcome = run(&[&more[..], &["ls", &folder]].concat()).ok();
    assert_eq!(outcome.stdout, "passwd\nx\n");
}

#[test]
fn files_that_cannot_be_loaded_give_one_line() {
    let mut files = FilesToLoad::new("files-errors", &[(b"x", 3)]);
    let inside = |name: &str| PathBuf::from(files.scratch.path("in")).join(name);
    let (pipe, socket, folder, huge) = (inside("pipe"), inside("socket"), inside("folder"), inside("huge"));
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).expect("it is new");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("it is new");
    fs::create_dir(&folder).expect("it is new");
    File::create(&huge).and_then(|file| file.set_len(10 << 40)).expect("the file system has sparse files");
    symlink("nowhere", inside("dangling")).expect("it is new");
    fs::write(inside(".hostbuf"), "x").expect("it is new");
    let cases: Vec<(PathBuf, i32, &[&str])> = vec![
        (
            inside("missing"),
            85,
            &["cannot load ", "missing on ", "No such file", "Each host of the job needs the file"],
        ),
        (inside("dangling"), 85, &["No such file"]),
        (folder, 2, &["it is a folder: name its files"]),
        (inside(".hostbuf"), 2, &["a link of hostbuf with the name .hostbuf: rename the file"]),
        (pipe, 2, &["it is not a regular file"]),
        (socket, 85, &["cannot load "]),
        ("/dev/zero".into(), 2, &["it is a device"]),
        (inside("missing\nline"), 85, &["\\nline\" on "]),
        (huge, 83, &["not enough memory on ", "10.0 TiB requested", "limited by "]),
    ];
    for (path, status, words) in cases {
        files.paths = vec![files.paths[0].clone(), path];
        let outcome = files.run(2, &[], &["true"]);
        one_line(&outcome, status, words);
        assert!(!Path::new(&files.folder()).exists(), "{outcome:?}");
    }
    let outcome = files.run(1, &[], &["no-such-program"]);
    assert_eq!(outcome.status, 127, "{outcome:?}");
}

#[test]
fn a_file_that_changes_while_it_is_loaded_is_an_error() {
    let files = FilesToLoad::new("files-changing", &[(b"x", 64 << 20)]);
    let over = AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut file = File::options().append(true).open(&files.paths[0]).expect("it is there");
            while !over.load(Ordering::Relaxed) {
                file.write_all(b"more").expect("the disk has room");
                std::thread::yield_now();
            }
        });
        let outcome = files.run(1, &[], &["true"]);
        over.store(true, Ordering::Relaxed);
        outcome
    });
    one_line(&outcome, 90, &["cannot load ", "it has changed while it was loaded (before: ", "; after: "]);
    assert!(!Path::new(&files.folder()).exists());
}

#[test]
fn a_folder_that_is_in_use_is_refused_and_nothing_is_lost() {
    let files = FilesToLoad::new("files-folders", &[(b"x", 3)]);
    let out = PathBuf::from(files.folder());
    let refused = |status, words: &[&str]| one_line(&files.run(1, &[], &["true"]), status, words);
    fs::create_dir(&out).expect("it is new");
    fs::write(out.join("x"), "mine").expect("our folder");
    refused(2, &["--as-files ", "out on ", "is not empty (it has x): name a new folder, or empty it"]);
    assert_eq!(fs::read_to_string(out.join("x")).expect("it stays"), "mine");
    // A link of another kind, beside the owner's.
    fs::remove_file(out.join("x")).expect("our file");
    for target in ["/proc/1/fd/1", "/etc/passwd"] {
        symlink(target, out.join("y")).expect("it is new");
        refused(2, &["is not empty (it has y)"]);
        symlink("hostbuf x y z", out.join(".hostbuf")).expect("it is new");
        refused(2, &["is not empty (it has .hostbuf)"]);
        assert_eq!(fs::read_link(out.join("y")).expect("it stays"), Path::new(target));
        fs::remove_file(out.join("y"))
            .and_then(|()| fs::remove_file(out.join(".hostbuf")))
            .expect("our links");
    }
    fs::set_permissions(&out, fs::Permissions::from_mode(0o777)).expect("our folder");
    refused(2, &["can be changed by other users", "chmod go-w"]);
    fs::remove_dir(&out).expect("it is empty");
    fs::write(&out, "mine").expect("our file");
    refused(2, &["is not a folder"]);
    fs::remove_file(&out).expect("our file");
    symlink("nowhere", &out).expect("it is new");
    refused(2, &["is a link to a folder that does not exist"]);
    fs::remove_file(&out).expect("our link");
    let deep = format!("{}/deep", files.folder());
    let outcome =
        run(&["run", "--launcher", "local", "--load", "/etc/passwd", "--as-files", &deep, "--", "true"]);
    one_line(&outcome, 85, &["cannot make the folder ", "No such file"]);
}

#[test]
fn each_of_several_jobs_has_its_folder_and_one_folder_has_one_job() {
    let files = FilesToLoad::new("files-jobs", &[(b"x", 3 << 20), (b"y", 17)]);
    let originals = files.scratch.path("in");
    let folders: Vec<String> = (0..6).map(|job| files.scratch.path(&format!("out{}", job / 2 * 2))).collect();
    let go = files.scratch.path("go");
    let script =
        format!("while ! [ -e {go} ]; do sleep 0.05; done; {} {originals}", program("map_files").display());
    let outcomes: Vec<CommandOutput> = std::thread::scope(|scope| {
        let start = |folder: &String| {
            let mut command = Command::new(hostbuf());
            command.args(["run", "--launcher", "local", "-n", "2", "--load"]).args(&files.paths);
            command.args(["--as-files", folder, "--", "sh", "-c", &script]);
            scope.spawn(move || CommandOutput::of(&mut command))
        };
        let jobs: Vec<_> = folders.iter().map(start).collect();
        let mut jobs: Vec<_> = jobs.into_iter().map(Some).collect();
        let mut outcomes = Vec::new();
        // One of two jobs with the same folder ends at once.
        while outcomes.len() < 3 {
            let ended = jobs
                .iter_mut()
                .filter(|job| job.as_ref().is_some_and(std::thread::ScopedJoinHandle::is_finished));
            outcomes.extend(ended.map(|job| job.take().expect("it is there").join().expect("no panic")));
            std::thread::yield_now();
        }
        File::create(&go).expect("target/ is writable");
        outcomes.extend(jobs.into_iter().flatten().map(|job| job.join().expect("no panic")));
        outcomes
    });
    for outcome in &outcomes[..3] {
        one_line(outcome, 2, &["has the files of a job that runs (its agent is process "]);
    }
    for outcome in outcomes.into_iter().skip(3) {
        assert_eq!(outcome.ok().lines("rank ").len(), 2);
    }
    assert!(folders.iter().all(|folder| !Path::new(folder).exists()));
}

#[test]
fn hosts_share_the_reading_of_one_file_system() {
    if !can_simulate() {
        return;
    }
    let files =
        FilesToLoad::new("files-shared", &[(b"a", 48 << 20), (b"b", 1), (b"c", 0), (b"d", (3 << 20) + 5)]);
    let (map_files, originals) = (program("map_files"), files.scratch.path("in"));
    let total = files.bytes;
    for flavour in flavours().iter().filter(|flavour| flavour.ends_with('4')) {
        let script = format!(
            "$HOSTBUF run --verbose -n 3 --host h0:1,h1:1,h2:1 --mpirun $MPIRUN --load {originals}/* --as-files /tmp/db -- {} {originals}\n",
            map_files.display()
        );
        let outcome = simulated(3, flavour, &script).ok();
        assert_eq!(outcome.lines("rank ").len(), 3, "{flavour}: {outcome:?}");
        let said: Vec<&str> =
            outcome.stderr.lines().filter(|line| line.starts_with("hostbuf: loaded on h")).collect();
        assert_eq!(said.len(), 3, "{flavour}: {outcome:?}");
        // Two of six windows each, and one of the other files.
        let mut read: Vec<u64> = said.iter().map(|line| bytes_read(line)).collect();
        read.sort_unstable();
        assert!(read.iter().all(|&bytes| bytes >= 16 << 20), "{flavour}: {said:#?}");
        assert!(read.iter().sum::<u64>().abs_diff(total) < 1 << 20, "{flavour}: {said:#?}");
    }
}

/// Returns the number of bytes that a host states to have read, as precisely as it does.
#[track_caller]
fn bytes_read(line: &str) -> u64 {
    let rest = line.split_once("of which this host has read ").map(|(_, rest)| rest);
    let rest = rest.unwrap_or_else(|| panic!("nothing is shared: {line}"));
    let mebibytes = rest.split_once(" MiB").and_then(|(number, _)| number.parse::<f64>().ok());
    (mebibytes.unwrap_or_else(|| panic!("no MiB: {line}")) * f64::from(1 << 20)) as u64
}

#[test]
fn each_host_has_a_folder_of_its_own() {
    if !can_simulate() {
        return;
    }
    let files = FilesToLoad::new("files-hosts", &[(b"a b", 5 << 20), (b"z", 1)]);
    let (map_files, originals, out) = (program("map_files"), files.scratch.path("in"), files.folder());
    for flavour in flavours().iter().filter(|flavour| flavour.ends_with('4')) {
        let run = |folder: &str| {
            format!(
                "$HOSTBUF run -n 4 --host h0:2,h1:2 --mpirun $MPIRUN --load {originals}/* --as-files {folder} -- {} {originals}; \
                 echo status $?; ls -A {}\n",
                map_files.display(),
                files.scratch.0.display()
            )
        };
        // /tmp is private to each simulated host, and the repository is shared.
        let script = run("/tmp/db") + &run(&format!("{out}-%h")) + &run(&out);
        let outcome = simulated(2, flavour, &script).ok();
        assert_eq!(outcome.lines("rank ").len(), 8, "{flavour}: {outcome:?}");
        assert_eq!(outcome.lines("status "), ["0", "0", "2"], "{flavour}: {outcome:?}");
        let said: Vec<&str> =
            outcome.stderr.lines().filter(|line| line.starts_with("hostbuf run: ")).collect();
        assert!(said.len() == 1 && said[0].contains("has the files of a job on h"), "{flavour}: {outcome:?}");
        assert!(said[0].contains("put %h into its path"), "{flavour}: {outcome:?}");
        // Nothing else is left.
        let left: Vec<&str> =
            outcome.stdout.lines().filter(|line| *line == "in" || line.starts_with("out")).collect();
        assert_eq!(left, ["in"; 3], "{flavour}: {outcome:?}");
    }
}
