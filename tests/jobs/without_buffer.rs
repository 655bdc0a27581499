//! Programs that run without the buffer: one line per host reports them, and they have no variable
//! with an address.

use std::process::Command;

use hostbuf_os::process::host_name;
use hostbuf_tests::{
    CommandOutput, Scratch, can_simulate, fixture, flavours, have, local, root, run, simulated, skip,
};

use crate::address::{all_at, build, probe};
use crate::image::{image, object};
use crate::other_user::OtherUser;

const FIRST: &str = "0x550000000000";

/// Checks that standard error is one line that contains all of `parts`.
#[track_caller]
pub fn one_line(outcome: &CommandOutput, parts: &[&str]) {
    assert_eq!(outcome.said().len(), 1, "{outcome:?}");
    for part in parts {
        assert!(outcome.stderr.contains(part), "{part:?} is missing: {outcome:?}");
    }
}

/// Checks that `ranks` programs ran, and that none of them found a variable of the buffer.
#[track_caller]
pub fn all_absent(outcome: &CommandOutput, ranks: usize) {
    assert_eq!(outcome.lines("variables "), vec!["absent absent"; ranks], "{outcome:?}");
}

/// Checks that `ranks` programs ran, and that all of them used the buffer.
#[track_caller]
pub fn all_used(outcome: &CommandOutput, ranks: usize) {
    assert_eq!(outcome.lines("variables "), vec!["0x0000550000000000 4194304"; ranks], "{outcome:?}");
    assert_eq!(outcome.lines("used "), vec!["16"; ranks], "{outcome:?}");
    assert!(outcome.said().is_empty(), "{outcome:?}");
}

// Programs without preloading

#[test]
fn a_static_program_runs_without_variables_and_one_line_names_its_ranks() {
    for flags in [&["-static"][..], &["-static-pie"]] {
        let Some(program) = build("gcc", "variables.c", flags) else { continue };
        let outcome = local(3, "4M", &[], &[&program]).ok();
        all_absent(&outcome, 3);
        let line =
            format!("hostbuf run: no buffer on {} in ranks 0-2: {program} is statically linked", host_name());
        one_line(&outcome, &[&line, "hostbuf_attach", "--require"]);
        assert_eq!(local(2, "4M", &[], &[&program, "5"]).status, 5);
        assert_eq!(local(2, "4M", &["--quiet"], &[&program]).ok().stderr, "");
    }
    for command in ["run", "exec"] {
        let help = run(&[command, "--help"]).ok().stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains("statically linked program"), "{help}");
        assert!(help.contains("hostbuf_attach or HostBuffer::attach"), "{help}");
    }
}

#[test]
fn the_example_in_the_readme_detects_a_missing_buffer() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let blocks = readme.split("```c\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let lines = blocks.filter(|block| block.contains("getenv")).collect::<Vec<_>>();
    assert_eq!(lines.len(), 1, "{lines:?}");
    let dir = Scratch::new("readme");
    let source = format!(
        "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <sys/mman.h>\n\
         static void fill(double *table, size_t bytes) {{ memset(table, 0, bytes); puts(\"filled\"); }}\n\
         int main(void) {{ int local_rank = 0;\n{}return 0; }}\n",
        lines[0]
    );
    std::fs::write(dir.path("readme.c"), source).unwrap();
    for (flags, status) in [(&["-O1"][..], 0), (&["-O1", "-static"], 1)] {
        let mut compiler = Command::new("gcc");
        compiler.args(flags).args([&dir.path("readme.c"), "-o", &dir.path("readme")]);
        CommandOutput::of(&mut compiler).ok();
        let program = dir.path("readme");
        // The same holds if a shell starts the program, as its child or in its place: a static
        // program inherits the shell's variables.
        let (child, instead) = (format!("{program}; exit $?"), format!("exec {program}"));
        for words in [&[&program[..]][..], &["sh", "-c", &child], &["sh", "-c", &instead], &["env", &program]]
        {
            let outcome = local(1, "4M", &[], words);
            assert_eq!(
                (outcome.status, outcome.stdout.contains("filled")),
                (status, status == 0),
                "{outcome:?}"
            );
            assert_eq!(outcome.stderr.contains("there is no host buffer"), status == 1, "{outcome:?}");
        }
    }
}

#[test]
fn the_line_names_only_the_ranks_without_a_buffer_and_verbose_counts_them() {
    let Some(fixed) = build("gcc", "variables.c", &["-static"]) else { return };
    let plain = build("cc", "variables.c", &[]).unwrap();
    let words = [&plain[..], ":", "-n", "1", "--", &fixed, ":", "-n", "2", "--", &plain];
    let outcome = local(2, "4M", &[], &words).ok();
    one_line(&outcome, &["in rank 2: "]);
    assert_eq!(outcome.lines("used ").len(), 4, "{outcome:?}");
    let outcome = local(2, "4M", &["--verbose"], &words).ok();
    assert!(outcome.stderr.contains("1 of 5 ranks have no buffer"), "{outcome:?}");
    assert!(!outcome.stderr.contains("all ranks"), "{outcome:?}");
    let outcome = local(2, "4M", &["--verbose"], &[&plain]).ok();
    assert!(outcome.stderr.contains("the first program of every rank has the buffer"), "{outcome:?}");
}

#[test]
fn require_refuses_a_program_without_a_buffer_before_any_rank_runs() {
    let Some(fixed) = build("gcc", "variables.c", &["-static"]) else { return };
    let plain = build("cc", "variables.c", &[]).unwrap();
    let outcome = local(2, "4M", &["--require"], &[&plain, ":", "-n", "1", "--", &fixed]);
    assert_eq!((outcome.status, &outcome.stdout[..]), (82, ""), "{outcome:?}");
    one_line(&outcome, &["rank 2 on ", "--require", &fixed, "is statically linked", "hostbuf_attach"]);
    all_used(&local(2, "4M", &["--require"], &[&plain]).ok(), 2);
    // The program is started by `hostbuf exec` without `hostbuf run`.
    let outcome = run(&["exec", "--size", "4M", "--require", "--", &fixed]);
    assert_eq!((outcome.status, &outcome.stdout[..]), (82, ""), "{outcome:?}");
    one_line(&outcome, &["hostbuf", "--require", "is statically linked"]);
    all_used(&run(&["exec", "--size", "4M", "--require", "--", &plain]).ok(), 1);
}

#[test]
fn every_host_of_an_mpirun_prints_its_line() {
    let Some(fixed) = build("gcc", "variables.c", &["-static"]) else { return };
    if !can_simulate() {
        return;
    }
    let Some(flavour) = flavours().into_iter().next() else { return };
    for start in [
        "$MPIRUN $MPIRUN_FLAGS $MPI_HOSTS_OPTION h0:2,h1:2 -np 4 $HOSTBUF exec --size 4M",
        "$HOSTBUF run --mpirun $MPIRUN --host h0:2,h1:2 -n 4 --size 4M",
    ] {
        let outcome = simulated(2, &flavour, &format!("{start} -- {fixed}")).ok();
        all_absent(&outcome, 4);
        let mut lines: Vec<&str> = outcome.stderr.lines().filter(|l| l.contains("no buffer")).collect();
        lines.sort_unstable();
        assert_eq!(lines.len(), 2, "{outcome:?}");
        assert!(lines[0].contains("no buffer on h0 in ranks 0-1: "), "{outcome:?}");
        assert!(lines[1].contains("no buffer on h1 in ranks 2-3: "), "{outcome:?}");
    }
}

/// mpirun of Open MPI 4.1 crashes if it gets a signal while it ends a job of which a rank has
/// failed.
#[test]
fn an_engine_ends_a_job_with_failing_ranks_by_itself() {
    let Some(fixed) = build("gcc", "variables.c", &["-static"]) else { return };
    if !can_simulate() {
        return;
    }
    let script =
        format!("$HOSTBUF run --mpirun $MPIRUN --host h0:2,h1:2 -n 4 --size 4M --require -- {fixed}");
    for flavour in flavours() {
        let outcome = simulated(2, &flavour, &script);
        assert_eq!((outcome.status, &outcome.stdout[..]), (82, ""), "{flavour}: {outcome:?}");
        let lines = |text: &str| outcome.stderr.lines().filter(|line| line.contains(text)).count();
        assert_eq!(lines("no buffer (--require)"), 1, "{flavour}: {outcome:?}");
        let disturbed = lines("Segmentation fault") + lines("abort is already in progress");
        assert_eq!(disturbed, 0, "{flavour}: {outcome:?}");
    }
}

/// Runs a job of a user other than root. One rank is a copy of variables.c with privileges from
/// `grant`, the other one the plain program. Records `what` as skipped if that is not possible.
fn privileged_rank(what: &str, reason: &str, grant: impl Fn(&str)) {
    let Some(other) = OtherUser::new(what) else { return };
    let plain = other.program(&build("cc", "variables.c", &[]).unwrap());
    let special = format!("{plain}-special");
    std::fs::copy(&plain, &special).unwrap();
    grant(&special);
    let mut command = other.command(other.hostbuf());
    command.args(["run", "--launcher", "local", "-n", "1", "--size", "4M", "--", &special]);
    command.args([":", "-n", "1", "--", &plain]);
    let outcome = CommandOutput::of(&mut command).ok();
    // The dynamic linker preloads nothing into a program with more privileges than its user. The
    // other rank has its buffer.
    assert!(outcome.stdout.contains("variables absent absent"), "{outcome:?}");
    assert!(outcome.stdout.contains("variables 0x0000550000000000 4194304"), "{outcome:?}");
    one_line(&outcome, &["in rank 0: ", &special, reason]);
}

#[test]
fn a_setuid_program_runs_without_the_buffer_of_the_other_ranks() {
    privileged_rank("setuid programs", "setuid", |path| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o4755)).unwrap();
    });
}

#[test]
fn a_program_with_file_capabilities_runs_without_the_buffer_of_the_other_ranks() {
    privileged_rank("file capabilities", "has file capabilities", |path| {
        // CAP_NET_RAW, permitted and effective, as setcap(8) writes it.
        let set = "import os, struct, sys\n\
                   os.setxattr(sys.argv[1], 'security.capability', struct.pack('<5I', 0x02000001, 1 << 13, 0, 0, 0))";
        let status = Command::new("python3").args(["-c", set, path]).status().unwrap();
        assert!(status.success());
    });
}

#[test]
fn a_static_program_at_the_first_candidate_moves_all_ranks_to_the_second() {
    let flags = ["-static", "-no-pie", "-mcmodel=large", "-Wl,-Ttext-segment=0x550000000000"];
    let static_flags = ["-static", "-no-pie", "-Wl,-Ttext-segment=0x550000000000", "-Wl,--no-relax"];
    let placed = fixture("gcc", "show.c", &static_flags).or_else(|_| fixture("gcc", "show.c", &flags));
    let placed = match placed {
        Ok(path) => path,
        // libc.a is compiled for the lowest 2 GiB, so the program does not use it.
        Err(_) => match fixture(
            "gcc",
            "bare.c",
            &["-static", "-nostdlib", "-no-pie", "-mcmodel=large", "-Wl,-Ttext-segment=0x550000000000"],
        ) {
            Ok(path) => path,
            Err(why) => return skip(&format!("a static program at {FIRST}: {why}")),
        },
    };
    let plain = build("cc", "show.c", &[]).unwrap();
    let outcome = local(1, "4M", &[], &[placed.to_str().unwrap(), ":", "-n", "1", "--", &plain]).ok();
    assert!(outcome.stdout.contains("buffer 0x300000000000 4194304 1"), "{outcome:?}");
    one_line(&outcome, &["in rank 0: ", "is statically linked"]);
}

#[test]
fn a_static_rust_program_attaches_at_the_address_of_the_dynamic_rank() {
    let dynamic = probe("attach_probe", false).unwrap();
    let linked = match probe("attach_probe", true) {
        Ok(path) => path,
        Err(why) => return skip(&format!("a static Rust program: {}", why.lines().next().unwrap_or(""))),
    };
    let outcome = local(1, "4M", &[], &[&linked, ":", "-n", "1", "--", &dynamic]).ok();
    let early = outcome.lines("early ");
    assert!(early.contains(&"0x0".to_owned()) && early.contains(&FIRST.to_owned()), "{outcome:?}");
    all_at(&outcome, "attached ", 2, FIRST);
    // Three places use the same memory: the dynamic rank's constructor and main, and the static
    // rank's main.
    assert!(outcome.lines("attached ").iter().any(|l| l.ends_with(" 4194304 3")), "{outcome:?}");
    // A shell's children, and a program that takes its place. They inherit the variables of the
    // shell, which has the buffer; the static program's constructor finds nothing mapped there, and
    // attaching maps it.
    for script in [format!("{linked}; {linked}; {dynamic}"), format!("{dynamic}; {dynamic}; exec {linked}")] {
        let outcome = local(1, "4M", &["--require"], &["sh", "-c", &script]).ok();
        assert_eq!(outcome.lines("early "), [FIRST; 3], "{outcome:?}");
        all_at(&outcome, "attached ", 3, FIRST);
        let dynamic_ones = script.matches(&dynamic).count();
        let last = outcome.lines("attached ").pop().unwrap();
        assert!(last.ends_with(&format!(" 4194304 {}", 3 + dynamic_ones)), "{outcome:?}");
    }
    // A program that can attach is not reported, and satisfies --require.
    let words = [&linked[..], ":", "-n", "1", "--", &dynamic];
    let outcome = local(1, "4M", &["--require", "--verbose"], &words).ok();
    assert!(outcome.stderr.contains("1 of 2 ranks map the buffer when they attach"), "{outcome:?}");
    assert!(!outcome.stderr.contains("no buffer"), "{outcome:?}");
}

// Process images that cannot reach the agent

/// Returns whether `unshare` can make a network namespace here; records a skip if not.
fn can_unshare() -> bool {
    let able =
        have("unshare") && CommandOutput::of(Command::new("unshare").args(["-rn", "true"])).status == 0;
    if !able {
        skip("network namespaces: unshare -rn is not allowed here");
    }
    able
}

#[test]
fn a_separate_network_namespace_is_reported_once_and_leaves_no_variable() {
    if !can_unshare() {
        return;
    }
    let plain = build("cc", "variables.c", &[]).unwrap();
    let outcome = local(3, "4M", &[], &["unshare", "-rn", &plain]).ok();
    all_absent(&outcome, 3);
    one_line(&outcome, &["hostbuf: no buffer", &plain, "ranks 0-2 on ", "network namespace of its own"]);
    // Its children inherit neither the variables nor the message.
    let script = format!("{plain}; {plain}");
    let outcome = local(2, "4M", &[], &["unshare", "-rn", "sh", "-c", &script]).ok();
    all_absent(&outcome, 4);
    one_line(&outcome, &["ranks 0-1 on "]);
    // Each program of the job gets its own line.
    let words = ["unshare", "-rn", &plain, ":", "-n", "1", "--", &plain];
    let outcome = local(1, "4M", &[], &words).ok();
    assert_eq!(outcome.lines("used "), ["16"], "{outcome:?}");
    one_line(&outcome, &["rank 0 on "]);
    let script = |start: &str| format!("{start} {plain}; exit $?");
    let (shared, own) = (script("env"), script("unshare -rn"));
    let outcome = local(2, "4M", &[], &["sh", "-c", &shared, ":", "-n", "1", "--", "sh", "-c", &own]).ok();
    assert_eq!(outcome.lines("used "), ["16"; 2], "{outcome:?}");
    one_line(&outcome, &["rank 2 on "]);
    // In the host's network namespace nothing is reported.
    all_used(&local(2, "4M", &[], &["unshare", "-r", &plain]).ok(), 2);
}

#[test]
fn require_ends_a_process_in_a_separate_network_namespace() {
    if !can_unshare() {
        return;
    }
    let plain = build("cc", "variables.c", &[]).unwrap();
    let outcome = local(1, "4M", &["--require"], &["unshare", "-rn", &plain]);
    assert_eq!((outcome.status, &outcome.stdout[..]), (86, ""), "{outcome:?}");
    one_line(&outcome, &["network namespace of its own", "--require"]);
}

#[test]
fn a_chroot_without_proc_has_the_buffer() {
    if !can_unshare() || !have("chroot") || !have("ldd") {
        return;
    }
    let plain = build("cc", "variables.c", &[]).unwrap();
    let object = object();
    let dir = image(&[&plain], &[&object]);
    let words = ["unshare", "-r", "chroot", dir.0.to_str().unwrap(), &plain];
    all_used(&local(2, "4M", &[], &words).ok(), 2);
}

#[test]
fn a_chroot_without_the_object_is_reported() {
    if !can_unshare() || !have("chroot") || !have("ldd") {
        return;
    }
    let plain = build("cc", "variables.c", &[]).unwrap();
    let dir = image(&[&plain], &[]);
    let root = dir.0.to_str().unwrap();
    // Only root may set groups.
    let as_root: &[&[&str]] = if nix::unistd::geteuid().is_root() {
        &[&["chroot", "--groups", "0"], &["chroot", "--userspec=0", "--groups=0", "--"]]
    } else {
        &[]
    };
    for chroot in [&[&["unshare", "-r", "chroot"][..]], as_root].concat() {
        let words = [chroot, &[root, &plain]].concat();
        let outcome = local(2, "4M", &[], &words).ok();
        all_absent(&outcome, 2);
        one_line(
            &outcome,
            &["no buffer in process", "/chroot (ranks 0-1 on ", "neither /proc nor", "bind hostbuf's"],
        );
        let outcome = local(1, "4M", &["--require"], &words);
        assert_eq!((outcome.status, &outcome.stdout[..]), (86, ""), "{outcome:?}");
        one_line(&outcome, &["neither /proc nor", "--require"]);
    }
    // If the new root has /proc, a descriptor passes the object.
    let mount = format!("--mount-proc={}", dir.path("proc"));
    all_used(&local(2, "4M", &[], &["unshare", "-rpf", &mount, "chroot", root, &plain]).ok(), 2);
}

#[test]
fn programs_in_a_chroot_without_proc_attach() {
    if !can_unshare() || !have("chroot") || !have("ldd") {
        return;
    }
    let dynamic = probe("attach_probe", false).unwrap();
    let object = object();
    let dir = image(&[&dynamic, "/bin/sh"], &[&object]);
    let chroot = ["unshare", "-r", "chroot", dir.0.to_str().unwrap()];
    // The preloaded object has mapped it.
    let outcome = local(2, "4M", &[], &[&chroot[..], &[&dynamic]].concat()).ok();
    assert_eq!(outcome.lines("early "), [FIRST; 2], "{outcome:?}");
    all_at(&outcome, "attached ", 2, FIRST);
    // No object has mapped it. The runtime's variables are hidden from the first program; the
    // second one inherits those of a shell.
    let linked = match probe("attach_probe", true) {
        Ok(path) => path,
        Err(why) => return skip(&format!("a static Rust program: {}", why.lines().next().unwrap_or(""))),
    };
    std::fs::copy(&linked, dir.path("linked")).unwrap();
    for (words, early) in [(&["/linked"][..], "0x0"), (&["/bin/sh", "-c", "/linked; exit $?"], FIRST)] {
        let outcome = local(2, "4M", &[], &[&chroot[..], words].concat()).ok();
        assert_eq!(outcome.lines("early "), [early; 2], "{outcome:?}");
        all_at(&outcome, "attached ", 2, FIRST);
    }
}
