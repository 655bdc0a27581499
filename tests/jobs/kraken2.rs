//! kraken2, a program of Debian that maps its database, with the database in the memory of the
//! host. The database is made of synthetic genomes.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use hostbuf::Bytes;
use hostbuf_tests::{CommandOutput, Scratch, eventually, have, processes_with};

use crate::running_job::{ARRIVAL, RunningJob, SOON};

const RANKS: usize = 4;
/// The number of bytes that kraken2 reads before it classifies them.
const BLOCK: usize = 3 << 20;
const SPECIES: usize = 4;
const GENOME: usize = 400_000;
const READ: usize = 150;

/// A random sequence of bases, the same in each run.
struct Bases(u64);

impl Bases {
    fn number(&mut self) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize
    }

    fn sequence(&mut self, length: usize) -> String {
        (0..length).map(|_| char::from(b"ACGT"[self.number() % 4])).collect()
    }
}

/// Writes genomes, reads of them with some that belong to none, and a taxonomy.
fn write_sequences(dir: &Scratch) {
    let mut bases = Bases(7);
    let (mut genomes, mut reads) = (String::new(), String::new());
    let (mut nodes, mut names) = (String::new(), String::new());
    let mut taxon = |number: usize, parent: usize, rank: &str, name: &str| {
        writeln!(
            nodes,
            "{number}\t|\t{parent}\t|\t{rank}\t|\t\t|\t0\t|\t1\t|\t11\t|\t1\t|\t0\t|\t1\t|\t1\t|\t0\t|\t\t|"
        )
        .and_then(|()| writeln!(names, "{number}\t|\t{name}\t|\t\t|\tscientific name\t|"))
        .expect("a string");
    };
    taxon(1, 1, "no rank", "root");
    taxon(2, 1, "superkingdom", "Bacteria");
    for species in 0..SPECIES {
        let number = 10 + species;
        taxon(number, 2, "species", &format!("Synthetica prima{species}"));
        let genome = bases.sequence(GENOME);
        writeln!(genomes, ">s{species}|kraken:taxid|{number}\n{genome}").expect("a string");
        for read in 0..6000 {
            let at = bases.number() % (GENOME - READ);
            writeln!(reads, ">r{species}.{read}\n{}", &genome[at..at + READ]).expect("a string");
        }
    }
    for read in 0..20 {
        writeln!(reads, ">x{read}\n{}", bases.sequence(READ)).expect("a string");
    }
    assert!(reads.len() > BLOCK + BLOCK / 10, "more than one block");
    fs::create_dir_all(dir.path("db/taxonomy")).expect("target/ is writable");
    for (name, text) in [
        ("genomes.fa", genomes),
        ("reads.fa", reads),
        ("db/taxonomy/nodes.dmp", nodes),
        ("db/taxonomy/names.dmp", names),
    ] {
        fs::write(dir.path(name), text).expect("target/ is writable");
    }
}

fn command(program: &str, words: &[&str]) {
    let _ = CommandOutput::of(Command::new(program).args(words)).ok();
}

/// Builds the database and classifies all reads with it, without hostbuf.
fn classify_plainly(dir: &Scratch) {
    let db = dir.path("db");
    command("kraken2-build", &["--add-to-library", &dir.path("genomes.fa"), "--no-masking", "--db", &db]);
    command("kraken2-build", &["--build", "--db", &db, "--threads", "1"]);
    let (output, report, reads) = (dir.path("plain.out"), dir.path("plain.report"), dir.path("reads.fa"));
    let outputs = ["--output", &output, "--report", &report, &reads];
    command("kraken2", &[&["--memory-mapping", "--db", &db], &outputs[..]].concat());
}

/// Returns the sum of a field of the mappings of a loaded file, in bytes, over all processes.
fn sum_of(processes: &[i32], file: &str, field: &str) -> u64 {
    let mut sum = 0;
    for pid in processes {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
        let mut is_it = false;
        for line in text.lines() {
            let Some((name, value)) = line.split_once(':') else { continue };
            if name.contains('-') {
                is_it = line.ends_with(&format!(":/files/{file} (deleted)"));
            } else if is_it && name == field {
                sum += value.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10;
            }
        }
    }
    sum
}

/// Returns the size of the pages of the mapping of a loaded file in a process, as the kernel states
/// it. The mapping has huge pages if there is one at least.
fn page_of(process: i32, file: &str) -> Bytes {
    let sum = |field| sum_of(&[process], file, field);
    match sum("ShmemPmdMapped") + sum("FilePmdMapped") {
        0 => Bytes(sum("KernelPageSize")),
        _ => Bytes(2 << 20),
    }
}

#[test]
fn kraken2_maps_one_copy_of_its_database_for_all_ranks() {
    if !have("kraken2") {
        return;
    }
    let dir = Scratch::new("kraken2-data");
    write_sequences(&dir);
    classify_plainly(&dir);
    let reads = fs::read(dir.path("reads.fa")).expect("it was written");
    let pipes: Vec<String> = (0..RANKS).map(|rank| dir.path(&format!("pipe.{rank}"))).collect();
    for pipe in &pipes {
        let mode = nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR;
        nix::unistd::mkfifo(pipe.as_str(), mode).expect("it is new");
    }
    let data = dir.path("");
    let script = format!(
        "cd {data} && exec kraken2 --memory-mapping --db $HOSTBUF_FILES --output out.$HOSTBUF_RANK \
         --report report.$HOSTBUF_RANK /dev/fd/0 <pipe.$HOSTBUF_RANK"
    );
    let (folder, ranks) = (dir.path("shared"), RANKS.to_string());
    let files = ["hash.k2d", "opts.k2d", "taxo.k2d"].map(|name| dir.path(&format!("db/{name}")));
    let more = ["-n", &ranks, "--verbose", "--load", &files[0], &files[1], &files[2], "--as-files", &folder];
    let mut job = RunningJob::start("kraken2", "size=1M", &more, &["sh", "-c", &script], |_, _| {});
    // Each rank classifies the first block, and then waits for the rest.
    let (first, rest) = reads.split_at(BLOCK + BLOCK / 10);
    let feed = |pipe: &String| {
        let mut pipe = File::options().write(true).open(pipe).expect("a rank opens it for reading");
        pipe.write_all(first).expect("the rank reads");
        pipe
    };
    let open: Vec<File> = pipes.iter().map(feed).collect();
    let hash = fs::metadata(&files[0]).expect("kraken2-build has made it").len();
    let pages = hash.next_multiple_of(4096);
    let classifiers = || -> Vec<i32> {
        let found = processes_with(&job.mark).into_iter().map(|(pid, _)| pid);
        found.filter(|&pid| hostbuf_os::process::name(pid) == "classify").collect()
    };
    // Random reads hit most pages of the table, and the kernel maps pages beside each.
    let mut resident = 0;
    eventually("each rank has read the database", ARRIVAL, || {
        resident = sum_of(&classifiers(), "hash.k2d", "Rss");
        resident >= RANKS as u64 * pages * 9 / 10
    });
    let processes = classifiers();
    assert_eq!(processes.len(), RANKS);
    let (shared, private) =
        (sum_of(&processes, "hash.k2d", "Pss"), sum_of(&processes, "hash.k2d", "Anonymous"));
    assert!(shared <= pages && private == 0, "{shared} and {private} of {pages} bytes, {resident} resident");
    let pages_of_all: Vec<String> =
        processes.iter().map(|&pid| page_of(pid, "hash.k2d").to_string()).collect();
    for mut pipe in open {
        pipe.write_all(rest).expect("the rank reads");
    }
    let status = job.end(4 * SOON);
    let said = job.err();
    assert!(status.success(), "{status}: {said}");
    // The table is the largest file, and kraken2 maps it as the agent has done.
    let stated =
        said.split_once("; the agent's mapping of the largest file has pages of ").map(|(_, rest)| rest);
    let stated = stated.and_then(|rest| rest.lines().next()).unwrap_or_else(|| panic!("{said}"));
    let stated = stated.split(" (").next();
    assert!(pages_of_all.iter().all(|page| Some(page.as_str()) == stated), "{pages_of_all:?}: {said}");
    for rank in 0..RANKS {
        for (own, plain) in [("out", "plain.out"), ("report", "plain.report")] {
            let read = |name: &str| fs::read(dir.path(name)).expect("kraken2 has made it");
            let same = read(&format!("{own}.{rank}")) == read(plain);
            assert!(same, "the {own} of rank {rank} differs from that without hostbuf");
        }
    }
    assert!(!Path::new(&folder).exists());
    job.leaves_nothing("kraken2");
}
