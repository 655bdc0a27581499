//! Registration of buffers before main (`--register`), and its output.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use hostbuf::register::CudaHost;
use hostbuf_tests::{
    CommandOutput, Scratch, can_simulate, eventually, fixture, flavours, have, hostbuf, local, root, run,
    simulated, skip,
};

use crate::address::build;
use crate::arguments::one_line;
use crate::other_user::OtherUser;
use crate::running_job::{ARRIVAL, RunningJob, SOON, kill_now, probe};

const AT: &str = "0x550000000000";

/// Returns true if the object that registers is built, and records a skip if not.
pub fn can_register() -> bool {
    let there = root().join("target/lib/hostbuf/libhostbuf_register.so").is_file();
    if !there {
        skip("registering before main: the object is not built (scripts/build)");
    }
    there
}

/// Builds the program that prints the locked and registered ranges.
fn registered() -> String {
    build("cc", "registered.c", &["-ldl"]).expect("a C compiler built this test's crate")
}

/// Returns the lines that begin with `prefix`, without it, sorted by rank.
fn ranks(outcome: &CommandOutput, prefix: &str) -> Vec<String> {
    let mut lines = outcome.lines(prefix);
    lines.sort();
    lines
}

#[test]
fn the_leader_registers_every_buffer_before_its_constructors() {
    if !can_register() {
        return;
    }
    let program = registered();
    let more = ["--register", "mlock", "--buffer", "name=more,size=1M"];
    let outcome = local(3, "4M", &more, &[&program]).ok();
    // The second buffer lies behind the first one and its guard.
    let both = format!("has mlock@{AT}+4194304 mlock@0x550000600000+1048576");
    let expected =
        [format!("0 early 5120 now 5120 {both}"), "1 early 0 now 0 has".into(), "2 early 0 now 0 has".into()];
    assert_eq!(ranks(&outcome, "alone "), expected, "{outcome:?}");
    // The end of the program prints nothing either.
    assert_eq!(outcome.said(), [""; 0]);
    let all = ["--register", "mlock", "--register-ranks", "all"];
    let outcome = local(2, "4M", &all, &[&program]).ok();
    let each = |rank| format!("{rank} early 4096 now 4096 has mlock@{AT}+4194304");
    assert_eq!(ranks(&outcome, "alone "), [each(0), each(1)], "{outcome:?}");
}

#[test]
fn hostbuf_exec_registers_and_a_later_process_image_registers_again() {
    if !can_register() {
        return;
    }
    let program = registered();
    // Bash has a getenv and a setenv of its own.
    for before in
        [&[][..], &["env", "A=b", "nice"], &["sh", "-c", "exec $0"], &["bash", "-c", "exec env bash -c $0"]]
    {
        let words = [&["exec", "--size", "4M", "--register", "mlock", "--"], before, &[&program]].concat();
        let outcome = run(&words).ok();
        let line = format!("0 early 4096 now 4096 has mlock@{AT}+4194304");
        assert_eq!((ranks(&outcome, "alone "), outcome.stderr.as_str()), (vec![line], ""), "{before:?}");
    }
}

#[test]
fn children_register_nothing() {
    if !can_register() {
        return;
    }
    let outcome = local(1, "4M", &["--register", "mlock"], &[&registered(), "child"]).ok();
    assert_eq!(outcome.said(), [""; 0]);
    // Locks belong to the parent alone. A forked child still has its parent's list of
    // registrations.
    let forked = outcome.lines("forked ");
    assert!(forked.len() == 1 && forked[0].starts_with("0 early 0 now 0 has"), "{outcome:?}");
    assert_eq!(outcome.lines("alone "), ["0 early 0 now 0 has"], "{outcome:?}");
    // If a shell starts the program, the shell registers.
    let script = format!("{}; grep VmLck /proc/$$/status", registered());
    let outcome = local(1, "4M", &["--register", "mlock"], &["sh", "-c", &script]).ok();
    assert_eq!(outcome.lines("alone "), ["0 early 0 now 0 has"], "{outcome:?}");
    assert!(outcome.stdout.contains("    4096 kB"), "{outcome:?}");
}

/// A program that was compiled with a header of fewer fields gets those, and one that does not set
/// `struct_size` gets an error.
#[test]
fn structures_of_other_sizes_are_filled_or_refused() {
    if !can_register() {
        return;
    }
    let outcome = local(1, "4M", &["--register", "mlock"], &[&registered(), "sizes"]).ok();
    let expected = ["1 mlock length 7 uninitialised -1 unchanged"];
    assert_eq!(outcome.lines("older "), expected, "{outcome:?}");
    let said = outcome.said();
    assert!(
        said.len() == 1
            && said[0].contains("to has the invalid struct_size 0")
            && said[0].contains("HOSTBUF_REGISTERED_BUFFER_INIT"),
        "{outcome:?}"
    );
}

/// Starts two ranks. The first is still registering when the other has mapped the buffer.
fn registering_job(mark: &str) -> RunningJob {
    let slow = fixture("cc", "slow_lock.c", &["-shared", "-fPIC"]).expect("a C compiler is there");
    let words = ["sh", "-c", "echo >$0/ran.$HOSTBUF_RANK", "DIR"];
    let job =
        RunningJob::start(mark, "size=4M", &["-n", "2", "--register", "mlock"], &words, |command, dir| {
            command.env("LD_PRELOAD", slow).env("LOCK_FILE", dir.path("locking"));
        });
    eventually("rank 0 registers", ARRIVAL, || job.dir.has("locking"));
    let has_mapped = |pid| {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        maps.contains(&format!(":{}", job.mark))
    };
    eventually("rank 1 has mapped", ARRIVAL, || job.rank(1).is_some_and(has_mapped));
    job
}

#[test]
fn no_rank_runs_before_registration_completes() {
    if !can_register() {
        return;
    }
    let mut job = registering_job("registers");
    assert!(!job.dir.has("ran.0") && !job.dir.has("ran.1"));
    fs::write(job.dir.path("locking.go"), "").expect("the folder is there");
    let status = job.end(ARRIVAL);
    assert!(status.success() && job.dir.has("ran.0") && job.dir.has("ran.1"), "{status}: {}", job.err());
    job.leaves_nothing("after registering");
}

#[test]
fn a_rank_killed_during_registration_ends_the_job() {
    if !can_register() {
        return;
    }
    let mut job = registering_job("dies-registering");
    kill_now(job.rank(0).expect("it registers"));
    let status = job.end(SOON);
    let err = job.err();
    assert!(!status.success() && err.lines().count() == 1 && err.contains("rank 0"), "{status}: {err}");
    assert!(!job.dir.has("ran.0") && !job.dir.has("ran.1"));
    job.leaves_nothing("after the end of the rank");
}

#[test]
fn the_doctor_tries_to_register() {
    let outcome = run(&["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    let checks = report["checks"].as_array().expect("a list").iter().filter(|c| c["group"] == "registration");
    let names: Vec<&str> = checks.clone().map(|c| c["name"].as_str().expect("a name")).collect();
    for name in ["page-locking", "libhostbuf_register.so", "libhostbuf_register_all.so", "strict monitor"] {
        assert!(names.contains(&name), "{names:?}");
    }
    if can_register() {
        let object =
            checks.clone().find(|c| c["name"] == "libhostbuf_register.so").expect("the value was just read");
        assert_eq!(object["mark"], "ok", "{object}");
        let devices = object["values"]["devices"].as_object().expect("what it says");
        assert!(devices.contains_key("mlock") && devices.contains_key("cuda"), "{object}");
    }
}

/// A shell command for a rank, which prints the lines of `hostbuf stat` (the command `$0`) about
/// its own job. Other tests have jobs on the same host.
const OWN: &str = r#"$0 stat | sed -n "/^job ${HOSTBUF_JOB##*/} /,/^$/p""#;

/// Returns the lines of `hostbuf stat` about registrations, with single spaces.
fn shown(outcome: &CommandOutput) -> Vec<String> {
    let lines = outcome.stdout.lines().filter(|l| l.contains("  mlock  "));
    lines.map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn every_engine_registers_in_the_leader_of_each_host_and_stat_shows_it() {
    if !can_register() || !can_simulate() {
        return;
    }
    let program = registered();
    for flavour in flavours() {
        let script = format!(
            "$HOSTBUF run -n 4 --host h0:2,h1:2 --mpirun $MPIRUN --size 4M --register mlock -- {program} \
             '[ $HOSTBUF_LOCAL_RANK = 1 ] || {}'",
            OWN.replace("$0", hostbuf().to_str().expect("UTF-8"))
        );
        let outcome = simulated(2, &flavour, &script).ok();
        let leads = |rank| format!("{rank} early 4096 now 4096 has mlock@{AT}+4194304");
        let idle = |rank| format!("{rank} early 0 now 0 has");
        let seen = ranks(&outcome, "rank ");
        assert_eq!(seen, [leads(0), idle(1), leads(2), idle(3)], "{flavour}: {outcome:?}");
        let shown = shown(&outcome);
        assert_eq!(shown.len(), 2, "{flavour}: {outcome:?}");
        for line in shown {
            assert!(line.starts_with("default mlock registered-"), "{flavour}: {line}");
            assert!(line.ends_with(" 4 MiB (all) read"), "{flavour}: {line}");
        }
    }
}

#[test]
fn stat_lists_no_registration_of_an_ended_process() {
    if !can_register() {
        return;
    }
    // Rank 0 registers, and exits while rank 1 checks.
    let script = format!(
        "[ $HOSTBUF_RANK = 0 ] && exit 0; \
         for i in $(seq 200); do {OWN} >$1.$$; grep -q '1 rank' $1.$$ && break; sleep 0.02; done; cat $1.$$; rm $1.$$"
    );
    let dir = Scratch::new("forgets");
    let (command, file) = (hostbuf(), dir.path("stat"));
    let words = ["sh", "-c", &script, command.to_str().expect("UTF-8"), &file];
    let outcome = local(2, "4M", &["--register", "mlock"], &words).ok();
    assert!(outcome.stdout.contains("  1 rank: "), "{outcome:?}");
    assert_eq!(shown(&outcome), [""; 0], "{outcome:?}");
    // The process image from before the exec has no registrations any more.
    let script = format!("exec sh -c '{OWN}' $0");
    let outcome = local(1, "4M", &["--register", "mlock"], &["sh", "-c", &script, words[3]]).ok();
    assert_eq!(shown(&outcome).len(), 1, "{outcome:?}");
    // The JSON lists it as long as the process lives.
    let json = [command.to_str().expect("UTF-8"), "stat", "--json"];
    let script = "echo ${HOSTBUF_JOB##*/}; $0 $1 $2";
    let outcome =
        local(1, "4M", &["--register", "mlock"], &["sh", "-c", script, json[0], json[1], json[2]]).ok();
    let (job, text) = outcome.stdout.split_once('\n').expect("two parts");
    let value: serde_json::Value = serde_json::from_str(text).expect("JSON");
    let buffers: Vec<_> = value["jobs"]
        .as_array()
        .expect("jobs")
        .iter()
        .filter(|j| j["job"] == job)
        .flat_map(|j| j["buffers"].as_array().expect("buffers"))
        .collect();
    // No rank has filled the buffer.
    assert_eq!(buffers.iter().map(|b| &b["fill"]).collect::<Vec<_>>(), ["empty"]);
    let held: Vec<_> = buffers.iter().flat_map(|b| b["registrations"].as_array().expect("a list")).collect();
    let ours = held.iter().find(|r| r["name"] == "sh" && r["length_bytes"] == 4 << 20).expect("the shell's");
    assert_eq!((&ours["device"], &ours["access"]), (&"mlock".into(), &serde_json::json!(["read"])));
}

#[test]
fn freezing_still_seals_and_registers_again() {
    if !can_register() {
        return;
    }
    let outcome = local(2, "4M", &["--register", "mlock"], &[&probe(), "freeze", "-", "plain"]).ok();
    assert_eq!(outcome.lines("proof "), ["sealed"; 2], "{outcome:?}");
    // Mapping over locked pages unlocks them; rank 0 has locked them again.
    let mut locked = outcome.lines("locked ");
    locked.sort();
    assert_eq!(
        (locked, outcome.stderr.as_str()),
        (vec!["0 4096 kB".to_owned(), "1 0 kB".into()], ""),
        "{outcome:?}"
    );
}

#[test]
fn freezing_deregisters_before_the_seal_and_registers_after_it() {
    let stand_in = fixture("cc", "early_calls.c", &["-shared", "-fPIC"]).expect("a C compiler is there");
    let job = |fails: Option<&str>| {
        let mut command = Command::new(hostbuf());
        command.args([
            "run",
            "--launcher",
            "local",
            "-n",
            "1",
            "--size",
            "4M",
            "--",
            &probe(),
            "freeze",
            "-",
            "plain",
        ]);
        command.env("LD_PRELOAD", &stand_in);
        CommandOutput::of(command.envs(fails.map(|value| ("END_FAILS", value))))
    };
    let outcome = job(None).ok();
    assert_eq!(outcome.lines("end "), [format!("{AT} 4194304 rw-s")], "{outcome:?}");
    assert_eq!(outcome.lines("again "), [format!("{AT} 4194304 r--s")], "{outcome:?}");
    assert_eq!(outcome.lines("proof "), ["sealed"], "{outcome:?}");
    let outcome = job(Some("yes"));
    assert_eq!(outcome.status, 3, "{outcome:?}");
    assert!(outcome.stderr.contains("--register does not end"), "{outcome:?}");
}

#[test]
fn a_missing_device_ends_the_job_before_any_rank_runs() {
    if !can_register() {
        return;
    }
    let cuda = CudaHost::probe();
    if cuda.is_ready() {
        return skip(&format!("a GPU that is not there: {cuda} is"));
    }
    let host = hostbuf_os::process::host_name();
    let words = ["rank 0", &host, "--register cuda", "--register cuda:optional runs the job without it"];
    one_line(&local(3, "1M", &["--register", "cuda"], &["echo", "ran"]), 82, &words);
    one_line(&local(2, "1M", &["--register", "cuda:1,mlock"], &["echo", "ran"]), 82, &["cuda:1"]);
    one_line(&run(&["exec", "--size", "1M", "--register", "cuda", "--", "echo", "ran"]), 82, &words);
    let outcome = local(2, "1M", &["--register", "cuda:optional,mlock"], &[&registered()]).ok();
    assert!(
        outcome.lines("alone ").iter().any(|l| l.ends_with("has mlock@0x550000000000+1048576")),
        "{outcome:?}"
    );
    assert_eq!(outcome.said(), [""; 0]);
    if can_simulate() && flavours().iter().any(|f| f == "openmpi4") {
        let script = "timeout 30 $HOSTBUF run -n 4 --host h0:2,h1:2 --mpirun $MPIRUN --size 4M --register cuda -- echo ran";
        let outcome = simulated(2, "openmpi4", script);
        assert_eq!((outcome.status, outcome.stdout.as_str()), (82, ""), "{outcome:?}");
        let ours: Vec<&str> = outcome.stderr.lines().filter(|l| l.starts_with("hostbuf")).collect();
        assert!(ours.len() == 1 && ours[0].contains("--register cuda"), "{outcome:?}");
    }
}

#[test]
fn a_failed_registration_gives_the_reason() {
    if !can_register() {
        return;
    }
    // Root may lock more than the limit.
    let Some(other) = OtherUser::new("the limit of locked memory") else { return };
    let mut command = other.command("prlimit");
    command.arg("--memlock=65536:65536").arg(other.hostbuf());
    command.args(["run", "--launcher", "local", "-n", "2", "--size", "1M", "--register", "mlock"]);
    let outcome = CommandOutput::of(command.args(["--", "echo", "ran"]));
    one_line(&outcome, 95, &["rank 0", "mlock", "1 MiB", "ulimit -l"]);
}

#[test]
fn invalid_arguments_are_refused_before_the_start() {
    let run_with = |more: &[&str]| {
        run(&[&["run", "--launcher", "local", "-n", "2"], more, &["--", "echo", "ran"]].concat())
    };
    for (devices, words) in [
        ("gpu", "is not a device"),
        ("cuda,cuda:1", "one is enough"),
        ("rdma:", "mlx5_0"),
        ("", "not a device"),
    ] {
        one_line(&run_with(&["--size", "1M", "--register", devices]), 2, &[words, "--register"]);
    }
    one_line(&run_with(&["--size", "1M", "--register-ranks", "all"]), 2, &["--register"]);
    one_line(
        &run_with(&["--size", "1M", "--register", "mlock", "--register-ranks", "some"]),
        2,
        &["some", "leader"],
    );
    let lazy = ["\"default\"", "lazy", "all its pages"];
    one_line(&run_with(&["--size", "1M", "--lazy", "--register", "mlock"]), 2, &lazy);
    one_line(&run(&["exec", "--size", "1M", "--lazy", "--register", "mlock", "--", "true"]), 2, &lazy);
    one_line(
        &run_with(&["--size", "1M", "--buffer", "name=x,size=1M,lazy", "--register", "mlock"]),
        2,
        &["\"x\""],
    );
    if let Some(fixed) = build("cc", "show.c", &["-static"])
        && can_register()
    {
        one_line(
            &local(2, "1M", &["--register", "mlock"], &[&fixed]),
            82,
            &["statically linked", "HostBuffer::register"],
        );
    }
}

#[test]
fn a_program_of_another_libc_is_refused_as_leader_and_runs_as_another_rank() {
    let Some(show) = build("musl-gcc", "show.c", &[]) else { return };
    if !can_register() {
        return;
    }
    one_line(
        &local(2, "1M", &["--register", "mlock"], &[&show]),
        82,
        &["rank 0", "another C library", "libc.so"],
    );
    let others = ["true", ":", "-n", "1", "--", &show];
    let outcome = local(1, "1M", &["--register", "mlock"], &others).ok();
    assert_eq!(outcome.lines(&format!("buffer {AT} ")), ["1048576 1"], "{outcome:?}");
}

#[test]
fn without_the_object_one_line_gives_the_build_command() {
    let dir = Scratch::new("no-object");
    fs::create_dir(dir.0.join("bin")).expect("it is new");
    let alone = dir.0.join("bin/hostbuf");
    fs::hard_link(hostbuf(), &alone).expect("one file system");
    let job = |devices: &str| {
        let mut command = Command::new(&alone);
        command.args([
            "run",
            "--launcher",
            "local",
            "-n",
            "2",
            "--size",
            "1M",
            "--register",
            devices,
            "--",
            "echo",
            "ran",
        ]);
        CommandOutput::of(&mut command)
    };
    one_line(&job("mlock"), 82, &["lib/hostbuf/libhostbuf_register.so", "scripts/install --prefix"]);
    one_line(&job("rdma"), 82, &["lib/hostbuf/libhostbuf_register_all.so", "install-deps rdma"]);
    fs::create_dir_all(dir.0.join("lib/hostbuf")).expect("it is new");
    let object = dir.0.join("lib/hostbuf/libhostbuf_register.so");
    fs::write(&object, "no library").expect("it is new");
    one_line(&job("mlock"), 82, &["is not a 64-bit library"]);
    fs::set_permissions(&object, std::os::unix::fs::PermissionsExt::from_mode(0o666)).expect("our own file");
    one_line(&job("mlock"), 82, &["could be changed by other users"]);
    // A file that exists, and that no user can open.
    fs::remove_file(&object).expect("our own file");
    symlink(&object, &object).expect("the name is free");
    let opening = format!("opening {}: Too many levels of symbolic links", object.display());
    one_line(&job("mlock"), 85, &[&opening]);
}

#[test]
fn the_objects_export_the_functions_of_the_header_and_load_after_the_preloaded_one() {
    if !can_register() || !have("readelf") {
        return;
    }
    for name in ["libhostbuf_register.so", "libhostbuf_register_all.so"] {
        let object = root().join("target/lib/hostbuf").join(name);
        if !object.is_file() {
            skip(&format!("{name}: it is not built (scripts/build, with the headers of libibverbs)"));
            continue;
        }
        let readelf = |what: &str| {
            CommandOutput::of(Command::new("readelf").args(["-W", what]).arg(&object)).ok().stdout
        };
        assert!(readelf("-d").contains("Shared library: [libhostbuf_preload.so]"), "{name}");
        // Any other exported name could replace a program's own function of that name.
        let symbols = readelf("--dyn-syms");
        let fields = symbols.lines().map(|l| l.split_whitespace().collect::<Vec<_>>());
        let mut defined: Vec<&str> = fields
            .filter(|f| f.len() == 8 && f[0].ends_with(':') && f[6] != "UND" && f[6] != "Ndx")
            .map(|f| f[7])
            .collect();
        defined.sort_unstable();
        let expected = [
            "hostbuf_maps_gpu_sections",
            "hostbuf_registered",
            "hostbuf_registered_again",
            "hostbuf_registered_end",
            "hostbuf_registered_probe",
        ];
        assert_eq!(defined, expected, "{name}");
    }
}
