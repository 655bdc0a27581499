//! One address for all ranks, for every kind of program and every existing mapping.
//!
//! ```text
//!   address                         ballot
//!   0x5500.. (sanitizers' window)   first
//!   0x3000..                        second
//!   0x1700..                        third
//!   0x4100..                        fourth
//!   slots in these windows          rounds 1 to 4
//!   everything else                 exact search
//! ```
//!
//! The tests plant mappings at each of them.

use std::process::Command;

use hostbuf::BufferOptions;
use hostbuf::segment::Layout;
use hostbuf_protocol::candidates;
use hostbuf_tests::{
    CommandOutput, can_simulate, fixture, flavours, have, hostbuf, local, root, simulated, skip,
};

const FIRST: &str = "0x550000000000";
const TOP: usize = 0x7fff_ffff_f000;
const LOWEST: usize = 0x1_0000;
const SIZE: &str = "64M";

/// Returns the length and the alignment of the reservation of a job with one buffer of [`SIZE`].
fn range() -> (usize, usize) {
    let layout = Layout::of(&[BufferOptions::new(64 << 20)]);
    (layout.length as usize, layout.align as usize)
}

/// Builds a fixture and returns its path. Records a skip and returns `None` if it cannot be built.
pub fn build(compiler: &str, source: &str, flags: &[&str]) -> Option<String> {
    match fixture(compiler, source, flags) {
        Ok(path) => Some(path.to_str().expect("the repository's path is UTF-8").to_owned()),
        Err(why) => {
            skip(&format!("{source} by {compiler} {flags:?}: {}", why.lines().next().unwrap_or("")));
            None
        }
    }
}

/// Returns the path of a test program; with `is_static`, of its build against a static libc, or the
/// reason why it is not built.
pub fn probe(name: &str, is_static: bool) -> Result<String, String> {
    let mut path = hostbuf_tests::program(name);
    if is_static {
        let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        path = root().join("target/static").join(target).join("debug").join(name);
        if !path.exists() {
            return Err(
                "it is not built (scripts/build-programs builds it where there is a static libc)".into()
            );
        }
    }
    Ok(path.to_str().expect("the repository's path is UTF-8").to_owned())
}

/// Asserts that every rank printed `prefix` and this address, and that standard error is empty.
#[track_caller]
pub fn all_at(outcome: &CommandOutput, prefix: &str, ranks: usize, address: &str) {
    let lines = outcome.lines(prefix);
    assert_eq!(lines.len(), ranks, "{outcome:?}");
    assert!(lines.iter().all(|l| l.split(' ').next() == Some(address)), "{outcome:?}");
    assert_eq!(outcome.said(), [""; 0], "{outcome:?}");
}

// Sanitizers

/// Checks that a program built this way uses the buffer from two ranks, directly and below shells.
fn sanitized(compiler: &str, flags: &[&str]) {
    let Some(sweep) = build(compiler, "sweep.c", &[flags, &["-pthread"]].concat()) else { return };
    let outcome = local(2, "1M", &[], &[&sweep]).ok();
    all_at(&outcome, "swept ", 2, FIRST);
    assert!(outcome.stdout.contains(&format!("swept {FIRST} 2")), "one buffer for both: {outcome:?}");
    for shell in ["./sweep; exit $?", "exec ./sweep"] {
        let shell = shell.replace("./sweep", &sweep);
        all_at(&local(2, "1M", &[], &["sh", "-c", &shell]).ok(), "swept ", 2, FIRST);
    }
}

#[test]
fn a_program_with_gccs_address_sanitizer_uses_the_buffer() {
    sanitized("gcc", &["-fsanitize=address"]);
}

#[test]
fn a_program_with_gccs_static_address_sanitizer_uses_the_buffer() {
    sanitized("gcc", &["-fsanitize=address", "-static-libasan"]);
}

#[test]
fn a_program_with_gccs_thread_sanitizer_uses_the_buffer() {
    sanitized("gcc", &["-fsanitize=thread"]);
}

#[test]
fn a_program_with_gccs_undefined_behaviour_sanitizer_uses_the_buffer() {
    sanitized("gcc", &["-fsanitize=undefined"]);
}

#[test]
fn a_program_with_gccs_leak_sanitizer_uses_the_buffer() {
    sanitized("gcc", &["-fsanitize=leak"]);
}

#[test]
fn a_program_with_clangs_address_sanitizer_uses_the_buffer() {
    sanitized("clang", &["-fsanitize=address"]);
}

#[test]
fn a_program_with_clangs_shared_address_sanitizer_uses_the_buffer() {
    let folder = Command::new("clang").arg("-print-runtime-dir").output().map(|o| o.stdout);
    let folder = String::from_utf8(folder.unwrap_or_default()).unwrap_or_default();
    // Debian's clang prints the folder of another layout.
    let folder = folder.trim().replace("x86_64-pc-linux-gnu", "linux");
    sanitized("clang", &["-fsanitize=address", "-shared-libasan", &format!("-Wl,-rpath,{folder}")]);
}

#[test]
fn a_program_with_clangs_thread_sanitizer_uses_the_buffer() {
    sanitized("clang", &["-fsanitize=thread"]);
}

#[test]
fn a_program_with_clangs_memory_sanitizer_uses_the_buffer() {
    sanitized("clang", &["-fsanitize=memory"]);
}

#[test]
fn a_program_with_clangs_undefined_behaviour_sanitizer_uses_the_buffer() {
    sanitized("clang", &["-fsanitize=undefined"]);
}

#[test]
fn a_sanitizer_still_detects_errors() {
    // The preload list must not have disabled the sanitizer: the program reads one byte behind a
    // heap block.
    let Some(overrun) = build("gcc", "overrun.c", &["-fsanitize=address"]) else { return };
    let outcome = local(1, "1M", &[], &[&overrun]);
    assert!(outcome.status != 0 && outcome.stderr.contains("heap-buffer-overflow"), "{outcome:?}");
}

#[test]
fn a_thread_sanitized_rank_and_a_plain_one_agree_on_the_sanitizers_window() {
    let Some(plain) = build("gcc", "plant.c", &[]) else { return };
    for compiler in ["gcc", "clang"] {
        let Some(sanitized) = build(compiler, "sweep.c", &["-fsanitize=thread", "-pthread"]) else {
            continue;
        };
        // local() starts one rank of the first program; the second rank runs the plain program.
        let programs = [&sanitized, ":", "-n", "1", "--", &plain];
        let outcome = local(1, SIZE, &[], &programs).ok();
        all_at(&outcome, "swept ", 1, FIRST);
        all_at(&outcome, "main ", 1, FIRST);
        // A small mapping at the beginning of the window in the plain rank moves all ranks to the
        // next slot of the window.
        let outcome = planted(&[(1, FIRST.into())], 1, &programs).ok();
        let line = outcome.lines("main ").concat();
        let address = usize::from_str_radix(&line[2..], 16).unwrap();
        assert!(candidates::SANITIZED.contains(&address) && line != FIRST, "{outcome:?}");
        all_at(&outcome, "swept ", 1, &line);
        // If the plain rank has mapped all of the window, no common address exists, and the error
        // names the mapping.
        let window = candidates::SANITIZED;
        let outcome = planted(&[(1, all_of(window.start, window.end))], 1, &programs);
        assert_failed_without_address(&outcome);
        if compiler == "clang" {
            assert!(outcome.stderr.contains("no agreement among the ranks: rank "), "{outcome:?}");
        }
    }
}

// Layouts and runtimes

#[test]
fn a_program_at_a_fixed_address_has_the_buffer() {
    let Some(show) = build("gcc", "show.c", &["-no-pie"]) else { return };
    all_at(&local(2, "4M", &[], &[&show]).ok(), "buffer ", 2, FIRST);
}

#[test]
fn a_program_with_an_unlimited_stack_has_the_buffer() {
    let show = build("cc", "show.c", &[]).unwrap();
    let fixed = build("cc", "show.c", &["-no-pie"]).unwrap();
    for program in [show, fixed] {
        let script = "ulimit -s unlimited || exit 77; exec \"$@\"";
        let words =
            ["-c", script, "bash", hostbuf().to_str().unwrap(), "run", "--launcher", "local", "-n", "2"]
                .map(str::to_owned);
        let mut command = Command::new("bash");
        command.args(words).args(["--size", "4M", "--", &program]);
        let outcome = CommandOutput::of(&mut command);
        if outcome.status == 77 {
            return skip("ulimit -s unlimited: the hard limit is lower");
        }
        all_at(&outcome.ok(), "buffer ", 2, FIRST);
    }
}

#[test]
fn a_program_without_address_randomisation_has_the_buffer() {
    if !have("setarch") {
        return;
    }
    let show = build("cc", "show.c", &[]).unwrap();
    // First the whole job has no randomisation, then only the program.
    let mut command = Command::new("setarch");
    command.arg("-R").arg(hostbuf()).args([
        "run",
        "--launcher",
        "local",
        "-n",
        "2",
        "--size",
        "4M",
        "--",
        &show,
    ]);
    let outcome = CommandOutput::of(&mut command);
    if outcome.stderr.contains("setarch:") {
        return skip("setarch -R: personality() is not allowed here");
    }
    all_at(&outcome.ok(), "buffer ", 2, FIRST);
    all_at(&local(2, "4M", &[], &["setarch", "-R", &show]).ok(), "buffer ", 2, FIRST);
}

/// Asserts that a runtime's own list of mappings contains the buffer in each of `ranks` ranks.
#[track_caller]
fn mapped_in(outcome: &CommandOutput, ranks: usize) {
    assert_eq!(outcome.stdout.matches("550000000000-550000400000 rw-s ").count(), ranks, "{outcome:?}");
    assert_eq!(outcome.stdout.matches(":default (deleted)").count(), ranks, "{outcome:?}");
    assert_eq!(outcome.said(), [""; 0], "{outcome:?}");
}

#[test]
fn java_has_the_buffer_with_each_garbage_collector() {
    if !have("java") {
        return;
    }
    let source = root().join("tests/fixtures/Maps.java");
    let source = source.to_str().unwrap();
    for collector in ["-XX:+UseSerialGC", "-XX:+UseG1GC", "-XX:+UseZGC"] {
        // Java compiles the single source file in memory. The heap is small, because two ranks
        // share this machine.
        mapped_in(&local(1, "4M", &[], &["java", collector, "-Xmx256m", source]).ok(), 1);
    }
}

#[test]
fn node_has_the_buffer() {
    if !have("node") {
        return;
    }
    let script = "console.log(require('fs').readFileSync('/proc/self/maps', 'utf8').split('\\n')\
                  .filter(l => l.includes('/memfd:hostbuf:') && l.startsWith('55')).join('\\n'))";
    mapped_in(&local(2, "4M", &[], &["node", "-e", script]).ok(), 2);
}

#[test]
fn python_has_the_buffer() {
    if !have("python3") {
        return;
    }
    let script = "print(*(l for l in open('/proc/self/maps') if '/memfd:hostbuf:' in l and l[:2] == '55'))";
    mapped_in(&local(2, "4M", &[], &["python3", "-c", script]).ok(), 2);
}

// Mappings in one rank or another, planted before the constructor of the preloaded object runs

/// Returns the argument of plant.c for everything that is free from `start` to `end`.
fn all_of(start: usize, end: usize) -> String {
    format!("{start:#x}-{end:#x}")
}

/// Returns the argument of plant.c for everything except these ranges of one job's length each.
pub fn all_but(holes: &[usize]) -> String {
    let mut at = LOWEST;
    let mut parts = Vec::new();
    for &hole in holes {
        parts.push(all_of(at, hole));
        at = hole + range().0;
    }
    parts.push(all_of(at, TOP));
    parts.join(",")
}

/// Runs `hostbuf run` with the engine `local` and each rank's plants in its environment.
fn planted(plants: &[(usize, String)], ranks: usize, program: &[&str]) -> CommandOutput {
    let mut command = Command::new(hostbuf());
    command
        .args(["run", "--launcher", "local", "-n", &ranks.to_string(), "--size", SIZE, "--"])
        .args(program);
    for (rank, what) in plants {
        command.env(format!("PLANT_{rank}"), what);
    }
    CommandOutput::of(&mut command)
}

/// Runs three ranks of the planting program.
fn three(plants: &[(usize, String)]) -> CommandOutput {
    planted(plants, 3, &[&build("cc", "plant.c", &[]).unwrap()])
}

/// Asserts that the job failed before main with one line, because the ranks have no common free
/// address.
#[track_caller]
fn assert_failed_without_address(outcome: &CommandOutput) {
    failed_before_main(outcome, 84);
}

/// Asserts that the job failed before main with this status and one line.
#[track_caller]
fn failed_before_main(outcome: &CommandOutput, status: i32) {
    assert_eq!(outcome.status, status, "{outcome:?}");
    assert_eq!(outcome.stdout, "", "a main ran: {outcome:?}");
    assert_eq!(outcome.said().len(), 1, "{outcome:?}");
}

/// Asserts that the job failed before main, and that the error names the host, the rank and the
/// obstacle.
#[track_caller]
fn names(outcome: &CommandOutput, rank: &str, what: &str) {
    assert_failed_without_address(outcome);
    let host = hostbuf_os::process::host_name();
    let who = format!("no agreement among the ranks: {rank} on {host}: ");
    assert!(outcome.stderr.contains(&who) && outcome.stderr.contains(what), "{outcome:?}");
    assert!(outcome.said().iter().all(|line| !line.contains(": 0 bytes")), "{outcome:?}");
}

#[test]
fn a_mapping_at_the_first_candidate_in_one_rank_moves_all_ranks_to_the_second() {
    for rank in 0..3 {
        all_at(&three(&[(rank, FIRST.into())]).ok(), "main ", 3, "0x300000000000");
    }
}

#[test]
fn mappings_at_the_first_two_candidates_move_all_ranks_to_the_third() {
    let both = format!("{FIRST},0x300000000000");
    all_at(&three(&[(1, both)]).ok(), "main ", 3, "0x170000000000");
    // The result does not depend on the ranks that have the mappings.
    let apart = [(0, FIRST.to_owned()), (2, "0x300000000000".to_owned())];
    all_at(&three(&apart).ok(), "main ", 3, "0x170000000000");
}

#[test]
fn a_mapping_at_the_end_of_a_candidate_blocks_it() {
    let (length, _) = range();
    let last_page = format!("{:#x}", 0x5500_0000_0000 + length - 4096);
    all_at(&three(&[(2, last_page)]).ok(), "main ", 3, "0x300000000000");
    let behind = format!("{:#x}", 0x5500_0000_0000 + length);
    all_at(&three(&[(2, behind)]).ok(), "main ", 3, FIRST);
}

#[test]
fn later_slots_are_used_if_the_start_of_every_window_is_mapped() {
    let (length, align) = range();
    let starts = [0x5500_0000_0000, 0x3000_0000_0000, 0x1700_0000_0000, 0x4100_0000_0000];
    // The first ballot also contains a later slot of each window.
    let first = candidates::ballot(0, length, align).unwrap();
    let slot = first.as_slice().iter().find(|address| !starts.contains(address)).unwrap();
    let starts = starts.map(|address| format!("{address:#x}")).join(",");
    all_at(&three(&[(1, starts)]).ok(), "main ", 3, &format!("{slot:#x}"));
}

/// Returns every address that a ballot may propose, once each.
fn whole_ballots() -> Vec<usize> {
    let (length, align) = range();
    let ballots = (0..).map_while(|round| candidates::ballot(round, length, align));
    let mut all: Vec<usize> = ballots.flat_map(|b| b.as_slice().to_vec()).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[test]
fn the_exact_search_finds_an_address_if_every_candidate_is_mapped() {
    let list = |part: &[usize]| part.iter().map(|a| format!("{a:#x}")).collect::<Vec<_>>().join(",");
    let all = whole_ballots();
    assert!(all.len() > 30);
    // The lowest hole above the legacy layouts is just behind the page at 0x170000000000.
    let (_, align) = range();
    let lowest = format!("{:#x}", (0x1700_0000_0000usize + 4096).next_multiple_of(align));
    all_at(&three(&[(1, list(&all))]).ok(), "main ", 3, &lowest);
    // One rank has half of the mappings, another rank the other half.
    let (odd, even): (Vec<_>, Vec<_>) = all.iter().copied().enumerate().partition(|(i, _)| i % 2 == 1);
    let strip = |half: Vec<(usize, usize)>| half.into_iter().map(|(_, a)| a).collect::<Vec<_>>();
    let plants = [(0, list(&strip(odd))), (2, list(&strip(even)))];
    all_at(&three(&plants).ok(), "main ", 3, &lowest);
}

#[test]
fn the_only_common_hole_of_full_address_spaces_is_found() {
    // rank 0   ####A####C#############      each hole has exactly the length of the reservation
    // rank 1   #########C####B########
    // rank 2   (its own mappings)
    let (length, align) = range();
    for (own, common, other) in [
        (0x1800_0000_0000, 0x2345_6760_0000, 0x4000_0000_0000),
        (0x4000_0000_0000, 0x2345_6760_0000, 0x1800_0000_0000),
        (0x1800_0000_0000, 0x0123_4560_0000, 0x4000_0000_0000),
        (0x1800_0000_0000, 0x4000_0000_0000 + length, 0x4000_0000_0000 + 3 * length),
    ] {
        assert!([own, common, other].iter().all(|a: &usize| a.is_multiple_of(align)));
        let holes = |mut pair: [usize; 2]| {
            pair.sort_unstable();
            all_but(&pair)
        };
        let outcome = three(&[(0, holes([own, common])), (1, holes([common, other]))]).ok();
        all_at(&outcome, "main ", 3, &format!("{common:#x}"));
    }
}

#[test]
fn without_a_common_hole_no_rank_runs_and_the_error_names_the_mapping() {
    let outcome = three(&[(1, all_but(&[0x1800_0000_0000])), (2, all_but(&[0x4000_0000_0000]))]);
    names(&outcome, "rank 1", "is taken by an anonymous mapping at 0x");
    // The holes overlap by less than the length of the reservation.
    let (length, align) = range();
    let outcome = three(&[(0, all_but(&[0x4000_0000_0000])), (1, all_but(&[0x4000_0000_0000 + align]))]);
    assert!(align < length);
    names(&outcome, "rank 0", "is taken by an anonymous mapping at 0x");
    // The hole begins at an address at which no reservation may begin.
    let outcome = three(&[(0, all_but(&[0x4000_0000_0000 + 4096]))]);
    names(&outcome, "rank 0", "is taken by an anonymous mapping at 0x");
    // A rank with one mapping in the way is not the cause beside a rank without any room.
    let outcome = three(&[(0, FIRST.into()), (1, all_but(&[]))]);
    names(&outcome, "rank 1", "is taken by an anonymous mapping at 0x");
    let outcome = three(&[(0, FIRST.into()), (2, format!("{FIRST},as=50000000"))]);
    names(&outcome, "rank 2", "is limited to 47.7 MiB (RLIMIT_AS): raise `ulimit -v`");
}

#[test]
fn hostbuf_exec_gives_the_same_error_without_a_common_hole() {
    let plant = build("cc", "plant.c", &[]).unwrap();
    let exec = |what: &str| {
        let mut command = Command::new(hostbuf());
        command.args(["exec", "--size", SIZE, "--", &plant]).env("PLANT_0", what);
        CommandOutput::of(&mut command)
    };
    all_at(&exec(FIRST).ok(), "main ", 1, "0x300000000000");
    all_at(&exec(&all_but(&[0x2345_6760_0000])).ok(), "main ", 1, "0x234567600000");
    names(&exec(&all_but(&[])), "rank 0", "is taken by an anonymous mapping at 0x");
    names(&exec("as=50000000"), "rank 0", "raise `ulimit -v`");
}

#[test]
fn ranks_of_two_hosts_with_different_mappings_agree() {
    if !can_simulate() {
        return;
    }
    let plant = build("cc", "plant.c", &[]).unwrap();
    for flavour in flavours().into_iter().filter(|f| f == "openmpi4" || f == "mpich4") {
        let pass = if flavour == "openmpi4" {
            "--launcher-arg -x --launcher-arg PLANT_0 --launcher-arg -x --launcher-arg PLANT_3"
        } else {
            ""
        };
        let script = |zero: &str, three: &str| {
            format!(
                "export PLANT_0={zero} PLANT_3={three}\n\
                 timeout 30 $HOSTBUF run -n 4 --host h0:2,h1:2 --mpirun $MPIRUN {pass} --size {SIZE} -- {plant}"
            )
        };
        let outcome = simulated(2, &flavour, &script(FIRST, "0x300000000000")).ok();
        assert_eq!(outcome.lines("main "), ["0x170000000000"; 4], "{flavour}: {outcome:?}");
        // Rank 3 runs on the second host. The error names it, and no rank runs.
        let outcome = simulated(2, &flavour, &script("0x1000000", &all_but(&[])));
        assert_eq!(outcome.status, 84, "{flavour}: {outcome:?}");
        assert!(outcome.lines("main ").is_empty(), "a main ran under {flavour}: {outcome:?}");
        let said: Vec<_> =
            outcome.stderr.lines().filter(|l| l.contains("no agreement among the ranks")).collect();
        assert!(said.len() == 1 && said[0].contains("rank 3 on h1: "), "{flavour}: {outcome:?}");
    }
}

#[test]
fn hostbuf_exec_under_mpirun_prints_the_error_once() {
    if !can_simulate() {
        return;
    }
    let plant = build("cc", "plant.c", &[]).unwrap();
    for flavour in flavours().into_iter().filter(|f| f == "openmpi4" || f == "mpich4") {
        let pass = if flavour == "openmpi4" { "-x PLANT_1" } else { "" };
        let script = |plants: &str| {
            format!(
                "export PLANT_1={plants}\ntimeout 30 $MPIRUN $MPIRUN_FLAGS {pass} -n 3 $HOSTBUF exec --size {SIZE} -- {plant}"
            )
        };
        let outcome = simulated(1, &flavour, &script(FIRST)).ok();
        assert_eq!(outcome.lines("main "), ["0x300000000000"; 3], "{flavour}: {outcome:?}");
        let outcome = simulated(1, &flavour, &script(&all_but(&[])));
        assert_ne!(outcome.status, 0, "{flavour}: {outcome:?}");
        assert!(outcome.lines("main ").is_empty(), "a main ran under {flavour}: {outcome:?}");
        let said = outcome.stderr.matches("no agreement among the ranks: rank 1 on ").count();
        assert_eq!(said, 1, "{flavour}: {outcome:?}");
    }
}

#[test]
fn too_little_address_space_is_reported() {
    names(&three(&[(2, "as=50000000".into())]), "rank 2", "raise `ulimit -v`");
    // The limit applies to a child of the rank, not to the rank.
    let show = build("cc", "show.c", &[]).unwrap();
    let outcome = local(1, SIZE, &[], &["bash", "-c", &format!("ulimit -v 60000; {show}; exit $?")]);
    assert_eq!((outcome.status, &outcome.stdout[..]), (86, ""), "{outcome:?}");
    assert!(outcome.stderr.contains("the address space is limited (`ulimit -v`)"), "{outcome:?}");
    assert_eq!(outcome.said().len(), 1, "{outcome:?}");
    // The limit applies to the whole job, so the agent detects it before any rank does.
    let script = format!(
        "ulimit -v 60000; exec {} run --launcher local -n 2 --size {SIZE} -- {show}",
        hostbuf().display()
    );
    let outcome = CommandOutput::of(Command::new("bash").args(["-c", &script]));
    failed_before_main(&outcome, 83);
    assert!(outcome.stderr.contains("ulimit -v"), "{outcome:?}");
}

#[test]
fn mappings_of_library_constructors_exist_before_the_vote() {
    let library = build("cc", "plant.c", &["-DLIBRARY", "-shared", "-fPIC"]).unwrap();
    // Both a library that the program needs and one that the user preloads run their constructors
    // before the preloaded object's.
    let needed = build("cc", "show.c", &["-Wl,--no-as-needed", &library]).unwrap();
    let outcome = planted(&[(1, FIRST.into())], 2, &[&needed]).ok();
    all_at(&outcome, "buffer ", 2, "0x300000000000");
    let show = build("cc", "show.c", &[]).unwrap();
    let mut command = Command::new(hostbuf());
    command.args(["run", "--launcher", "local", "-n", "2", "--size", SIZE, "--", &show]);
    command.env("LD_PRELOAD", &library).env("PLANT_1", FIRST);
    all_at(&CommandOutput::of(&mut command).ok(), "buffer ", 2, "0x300000000000");
}

#[test]
fn a_later_process_image_without_the_address_fails_with_a_clear_error() {
    // The shell votes and gets the first candidate; the program that it starts has a mapping there.
    let plant = build("cc", "plant.c", &[]).unwrap();
    let outcome = planted(&[(0, FIRST.into())], 1, &["sh", "-c", &format!("{plant}; exit $?")]);
    failed_before_main(&outcome, 86);
    for part in [FIRST, "an anonymous mapping occupies 0x550000000000-0x550000001000", "hostbuf exec"] {
        assert!(outcome.stderr.contains(part), "{outcome:?}");
    }
}
