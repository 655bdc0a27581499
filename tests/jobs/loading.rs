//! Loading files into the buffers of several hosts, by all their ranks.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use hostbuf_tests::{
    CommandOutput, Scratch, can_simulate, eventually, fixture, local, processes_with, program, root,
};
use xxhash_rust::xxh3::Xxh3;

/// The host of each of the eight ranks.
const HOSTS: [&str; 8] = ["h0", "h0", "h0", "h1", "h1", "h1", "h2", "h2"];

/// The files of a test, and what the ranks should find in them.
struct Files {
    folder: Scratch,
    paths: Vec<PathBuf>,
    /// The checksum of the names and the bytes of all tensors.
    digest: u64,
    bytes: u64,
    header_bytes: u64,
}

impl Files {
    /// Makes two files of safetensors, of which the second has a header of odd length, and a raw
    /// file.
    fn new(name: &str) -> Files {
        let folder = Scratch::new(name);
        let mut files = Files { folder, paths: Vec::new(), digest: 0, bytes: 0, header_bytes: 0 };
        let mut tensors = Vec::new();
        for (file, elements, padding) in [("a", 1_000_001, 0), ("b", 300_003, 3)] {
            let data = pattern(elements * 2, elements);
            let text = format!(
                r#"{{"{file}.w":{{"dtype":"BF16","shape":[{elements}],"data_offsets":[0,{}]}}}}"#,
                data.len()
            );
            let length = text.len().next_multiple_of(8) + padding;
            let mut bytes = (length as u64).to_le_bytes().to_vec();
            bytes.extend_from_slice(text.as_bytes());
            bytes.resize(8 + length, b' ');
            bytes.extend_from_slice(&data);
            files.header_bytes += 8 + length as u64;
            files.add(&format!("{file}.safetensors"), &bytes);
            tensors.push((format!("{file}.w"), data));
        }
        let raw = pattern(4_000_000, 1);
        // The first bytes of a file without an extension are read to find its format.
        files.header_bytes += 8;
        files.add("raw", &raw);
        tensors.push(("raw".into(), raw));
        let mut hash = Xxh3::new();
        for (name, bytes) in &tensors {
            hash.update(name.as_bytes());
            hash.update(bytes);
        }
        files.digest = hash.digest();
        files
    }

    fn add(&mut self, name: &str, bytes: &[u8]) {
        let path = self.folder.0.join(name);
        fs::write(&path, bytes).expect("target/ is writable");
        self.paths.push(path);
        self.bytes += bytes.len() as u64;
    }

    fn words(&self) -> String {
        self.paths.iter().map(|path| format!("{} ", path.display())).collect()
    }
}

fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|at| ((at * 31 + at / 4096 + seed) % 251) as u8).collect()
}

/// Runs eight ranks on three simulated hosts, and returns the lines that they have printed.
fn on_hosts(mode: &str, files: &Files) -> Vec<String> {
    on_hosts_with("", mode, files)
}

/// Runs eight ranks as [`on_hosts`], with variables of their environment.
fn on_hosts_with(environment: &str, mode: &str, files: &Files) -> Vec<String> {
    let (program, folder) = (program("load_files"), files.folder.0.display());
    let mut script = String::new();
    for (rank, host) in HOSTS.iter().enumerate() {
        // The status of a rank that was killed is not an error of the script.
        script += &format!(
            "$SIMHOSTS_RSH {host} 'env {environment} {} {mode} {rank} {} 10.77.0.1:7171 {} >{folder}/out.{rank} 2>&1' &\n",
            program.display(),
            HOSTS.len(),
            files.words()
        );
    }
    script += "wait\n";
    let mut command = Command::new(root().join("scripts/simhosts"));
    command.args(["3", "--", "bash", "-c", &script]).current_dir(root());
    CommandOutput::of(&mut command).ok();
    let read = |rank: usize| fs::read_to_string(files.folder.path(&format!("out.{rank}")));
    (0..HOSTS.len()).map(|rank| read(rank).expect("the shell has made the file")).collect()
}

/// Runs eight ranks by `hostbuf run` on this host.
fn launched(mode: &str, files: &Files) -> CommandOutput {
    let program = program("load_files");
    let mut words = vec![program.to_str().expect("UTF-8"), mode, "0", "0", "-"];
    words.extend(files.paths.iter().map(|path| path.to_str().expect("UTF-8")));
    local(8, "8M", &["--quiet"], &words)
}

/// Returns the number behind a word of a line.
#[track_caller]
fn number(line: &str, word: &str) -> u64 {
    let found = line.split_once(&format!(" {word} ")).map(|(_, rest)| rest);
    let digits = found.unwrap_or_else(|| panic!("no {word} in {line}")).split_whitespace().next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("no number {word} in {line}"))
}

/// Asserts that the ranks have read each byte once, and see all of them at one address.
#[track_caller]
fn assert_read_once(lines: &[String], files: &Files) {
    let digest = format!("digest {:016x}", files.digest);
    let address = lines[0].split(" at ").nth(1).and_then(|rest| rest.split(' ').next());
    let address = address.filter(|address| address.starts_with("0x")).unwrap_or_else(|| panic!("{lines:#?}"));
    for line in lines {
        assert!(
            line.contains(&digest) && line.contains(&format!(" at {address} ")),
            "{digest} at {address}: {line}"
        );
        assert_eq!(number(line, "job"), files.bytes, "{line}");
        assert_eq!(number(line, "headers"), files.header_bytes, "{line}");
    }
    // The kernel's count includes a few small files of /proc for each rank.
    let read: u64 = lines.iter().map(|line| number(line, "read")).sum();
    let needed = files.bytes + files.header_bytes;
    let most = needed + 512 * lines.len() as u64;
    assert!((needed..most).contains(&read), "{read} bytes were read, of {needed}: {lines:#?}");
}

#[test]
fn ranks_of_three_hosts_read_each_byte_once_and_see_all() {
    if !can_simulate() {
        return;
    }
    let files = Files::new("load-once");
    let lines = on_hosts("load", &files);
    assert_read_once(&lines, &files);
    // Each host has read a third, and received the rest.
    let mut counted = 0;
    for (rank, line) in lines.iter().enumerate() {
        assert!(line.starts_with(&format!("rank {rank}: on {} ", HOSTS[rank])), "{line}");
        let (own, received) = (number(line, "counted"), number(line, "received"));
        assert!(own.abs_diff(files.bytes / 3) <= 2 * (16 << 10), "{line}");
        assert!((own + received).abs_diff(files.bytes) < 3 * 4096, "{line}");
        counted += if rank == 0 || HOSTS[rank] != HOSTS[rank - 1] { own } else { 0 };
    }
    assert_eq!(counted, files.bytes);
}

/// The delays are 2 ms for each window that the hosts exchange, and 10 ms for each read of 8 KiB.
#[test]
fn a_slow_exchange_and_slow_reads_of_several_hosts_are_named() {
    if !can_simulate() {
        return;
    }
    let files = Files::new("load-slow");
    let reads = fixture("cc", "slow_reads.c", &["-shared", "-fPIC"]).expect("a C compiler is there");
    let slow_reads = format!("LD_PRELOAD={} SLOW_READS_MS=10", reads.display());
    for (environment, mode, bound) in [("", "slow", "replication"), (&slow_reads, "load", "disk")] {
        let lines = on_hosts_with(environment, mode, &files);
        println!("{lines:#?}");
        assert_eq!(lines.len(), HOSTS.len());
        assert!(lines.iter().all(|line| line.ends_with(&format!(" bound {bound}\n"))), "{bound}: {lines:#?}");
    }
}

#[test]
fn ranks_of_a_launcher_load_into_its_buffer() {
    let files = Files::new("load-launched");
    let outcome = launched("load", &files).ok();
    let lines: Vec<String> = outcome.stdout.lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 8, "{outcome:?}");
    assert_read_once(&lines, &files);
}

#[test]
fn a_rank_of_a_launcher_that_is_killed_while_loading_ends_the_job() {
    let files = Files::new("load-ended");
    let outcome = launched("die=3", &files);
    assert_eq!(outcome.status, 137, "{outcome:?}");
    let mark = files.folder.0.to_str().expect("UTF-8");
    eventually("no rank is left", Duration::from_secs(10), || processes_with(mark).is_empty());
}

#[test]
fn a_rank_that_is_killed_while_loading_is_an_error_on_the_others() {
    if !can_simulate() {
        return;
    }
    let files = Files::new("load-killed");
    let lines = on_hosts("die=4", &files);
    for (rank, line) in lines.iter().enumerate() {
        if rank == 4 {
            assert_eq!(line, "", "the rank was killed");
            continue;
        }
        assert!(line.contains("failed as Job after"), "rank {rank}: {lines:#?}");
        // A rank that only waits for a silent one gives up after 20 s.
        assert!(number(line, "after") < 15, "rank {rank}: {lines:#?}");
    }
    let mark = files.folder.0.to_str().expect("UTF-8");
    assert_eq!(processes_with(mark), []);
}

#[test]
fn a_file_that_changes_while_it_is_loaded_is_an_error_on_all_ranks() {
    if !can_simulate() {
        return;
    }
    let files = Files::new("load-changed");
    let lines = on_hosts("change=6", &files);
    let path = files.paths[0].display().to_string();
    let mut elsewhere = 0;
    for (rank, line) in lines.iter().enumerate() {
        assert!(line.starts_with(&format!("rank {rank}: failed as Changed after ")), "{lines:#?}");
        assert!(line.contains(&path) && line.contains("changed at 0.000000000"), "{lines:#?}");
        elsewhere += usize::from(line.contains("s: rank ") && line.contains(" on h"));
    }
    // All but the first one that has noticed it name its rank and its host.
    assert_eq!(elsewhere, HOSTS.len() - 1, "{lines:#?}");
}

/// scripts/test-long runs more rounds, and rounds of ranks that are killed.
#[test]
fn random_faults_of_transfers_leave_nothing() {
    let outcome = CommandOutput::of(Command::new(program("load_faults")).args(["transfers", "60"])).ok();
    assert!(outcome.stdout.starts_with("transfers: 60 rounds"), "{outcome:?}");
    // The pins of rings that have lost their devices, and nothing else.
    assert!(outcome.stdout.contains("memories of rings kept"), "{outcome:?}");
}
