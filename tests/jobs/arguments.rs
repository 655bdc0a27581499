//! Invalid arguments give one clear line and the right exit status, and no process remains. Valid
//! arguments have their effect.

use std::process::Command;
use std::time::{Duration, Instant};

use hostbuf_tests::{
    CommandOutput, can_simulate, eventually, fixture, flavours, hostbuf, local, run, simulated, skip,
};

use crate::running_job::{SOON, probe, remains};

/// Asserts that hostbuf printed one line on standard error, besides those about progress, that
/// contains all of `words`.
#[track_caller]
pub fn one_line(outcome: &CommandOutput, status: i32, words: &[&str]) {
    let said = outcome.said();
    let [err] = said[..] else { panic!("{outcome:?}") };
    assert_eq!(outcome.status, status, "{outcome:?}");
    assert!(err.starts_with("hostbuf"), "{err}");
    assert!(words.iter().all(|w| err.contains(w)), "{words:?}: {err}");
    assert_eq!(outcome.stdout, "");
}

#[test]
fn impossible_sizes_are_refused() {
    for (size, words) in [
        ("0", ["size 0", "at least one byte"]),
        ("200T", ["200 TiB", "the address space holds at most"]),
        ("101T", ["101 TiB", "100 TiB"]),
    ] {
        one_line(&local(2, size, &[], &["true"]), 2, &words);
        one_line(&run(&["exec", "--size", size, "--", "true"]), 2, &words);
    }
    // Each buffer alone is possible, all together are not.
    let buffers = ["--buffer=name=a,size=60T,lazy", "--buffer=name=b,size=60T,lazy"];
    one_line(&run(&[&["run"], &buffers[..], &["--", "true"]].concat()), 2, &["add up to 120 TiB"]);
}

/// Errors of the command line's parser may take several lines; the first one is complete.
#[test]
fn invalid_values_are_refused() {
    for (arguments, words) in [
        (&["--size", "rubbish"][..], &["rubbish", "2G"][..]),
        (&["--size", "-5"], &["invalid value '-5' for '--size <SIZE>': expected a size, for example"]),
        (
            &["--size", "1P"],
            &["invalid value '1P' for '--size <SIZE>': unknown unit P: expected K, M, G or T (see"],
        ),
        (&["--buffer", "size=12Q"], &["invalid size \"12Q\": unknown unit Q: expected K, M, G or T"]),
        (&["--size", "1M", "-n", "-3"], &["invalid value '-3' for '--ranks", "a whole number"]),
        (&["--size", "1e9"], &["1e9"]),
        (&["--size", "99999999T"], &["address space"]),
        (
            &["--size", "1M", "--pages", "3m"],
            &["invalid value '3m' for '--pages <PAGES>': expected auto, 4k, thp, 2m or 1g (see"],
        ),
        (&["--buffer", "name=a"], &["buffer \"a\" has neither size= nor sections"]),
        (&["--size", "1M", "--numa", "near"], &["invalid value 'near' for '--numa", "such as 0 or 0,2-3"]),
        (&["--size", "1M", "--numa", "0,0"], &["node 0 occurs twice"]),
        (
            &["--size", "1M", "--numa", "interleave:0,1/3"],
            &["expected a weight for each of the nodes, 2 in all, found 1"],
        ),
        (&["--size", "1M", "--numa", "0", "--lazy"], &["is lazy and has a placement", "leave out lazy"]),
        (&["--numa", "0", "--buffer", "name=a,size=1M"], &["--numa", "require --size"]),
        (&["--section", "name=a"], &["section \"name=a\" has no size="]),
        (
            &["--section", "name=a,size=1M,buffer=b", "--size", "1M"],
            &["buffer \"b\", which is not requested"],
        ),
        (&["--section", "name=a,size=8M", "--size", "4M"], &["need 8 MiB", "its size is 4 MiB"]),
        (&["--section", "name=a,size=1M", "--section", "name=a,size=1M"], &["two sections", "named \"a\""]),
        (&["--buffer", "name=a b,size=1M"], &["a b"]),
        (&["--buffer", "size=1M,colour=red"], &["colour"]),
        (&["--size", "1M", "-n", "many"], &["many"]),
        (&["--size", "1M", "-n", "99999999999999", "--launcher", "local"], &["99999999999999", "at most"]),
        (&["--size", "1M", "-n", "99999999999999999999"], &["99999999999999999999", "at most"]),
        (&["--size", "1M", "--launcher", "pbs"], &["pbs", "openmpi"]),
        (&["--sise", "1M"], &["unexpected argument '--sise'", "did you mean --size?"]),
        (&["--size", "1M", "-np", "2"], &["did you mean -n 4 instead of -np?"]),
        (&["--size", "1M", "-H", "h0,h1"], &["'-H'", "did you mean --host h0:2,h1:2?"]),
        (
            &["--size", "1M", "-N", "2"],
            &["'-N'", "did you mean --host h0:2,h1:2, which names the ranks of each host?"],
        ),
        (&["--size", "1M", "-x", "NAME"], &["'-x'", "did you mean --launcher-arg -x --launcher-arg NAME?"]),
        (
            &["--size", "1M", "--start-timeout", "soon"],
            &["invalid value 'soon' for '--start-timeout", "expected a number of seconds"],
        ),
        (
            &["--size", "1M", "--start-timeout", "-1"],
            &["invalid value '-1' for '--start-timeout", "expected a number of seconds"],
        ),
        (&["--size", "1M", "--bind", "none"], &["invalid value 'none' for '--bind", "so leave it out"]),
        (&["--size", "1M", "--oversubscribe"], &["unexpected argument '--oversubscribe'", "--launcher-arg"]),
    ] {
        let outcome = run(&[&["run"], arguments, &["--", "true"]].concat());
        let first = outcome.stderr.lines().next().unwrap_or("");
        assert_eq!((outcome.status, outcome.stdout.as_str()), (2, ""), "{outcome:?}");
        assert!(words.iter().all(|w| outcome.stderr.contains(w)), "{words:?}: {first}");
    }
}

#[test]
fn a_misspelled_command_gets_a_suggestion() {
    one_line(&run(&["runn", "-n", "2"]), 2, &["'runn'", "did you mean run?"]);
    one_line(&run(&["docter"]), 2, &["'docter'", "did you mean doctor?"]);
}

#[test]
fn an_invalid_argument_names_the_help_of_its_subcommand() {
    for (arguments, help) in [
        (&["run", "--size", "1M", "--sise", "2M", "--", "true"][..], "hostbuf run --help"),
        (&["run", "--size", "1M", "-hosts", "h0", "--", "true"], "hostbuf run --help"),
        (&["run", "--size", "rubbish", "--", "true"], "hostbuf run --help"),
        (&["exec", "--sise", "1M", "--", "true"], "hostbuf exec --help"),
        (&["broker", "--bogus"], "hostbuf broker --help"),
        (&["mirror", "--bogus"], "hostbuf mirror --help"),
        (&["stat", "--bogus"], "hostbuf stat --help"),
        (&["doctor", "--size", "rubbish"], "hostbuf doctor --help"),
        (&["runn"], "hostbuf --help"),
        (&["--bogus", "run"], "hostbuf --help"),
    ] {
        let end = format!("see {help})\n");
        let outcome = run(arguments);
        one_line(&outcome, 2, &[end.trim_end()]);
        assert!(outcome.stderr.ends_with(&end), "{outcome:?}");
    }
    // The command that the help of `hostbuf` names without listing it.
    assert!(run(&["--help"]).ok().stdout.contains("hostbuf manual PREFIX"));
}

#[test]
fn options_of_mpirun_get_the_name_of_their_counterpart() {
    let hosts = "did you mean --host h0:2,h1:2? ";
    let file = "did you mean --hostfile FILE? ";
    let ranks_of_hosts = "did you mean --host h0:2,h1:2, which names the ranks of each host? ";
    let environment = "did you mean --launcher-arg -genv --launcher-arg NAME --launcher-arg VALUE? ";
    let bind_to = "did you mean --launcher-arg --bind-to --launcher-arg VALUE, the engine's option";
    for (arguments, option, answer) in [
        (&["-host", "h0"][..], "-host", hosts),
        (&["-host=h0"], "-host", hosts),
        (&["-hosts", "h0,h1"], "-hosts", hosts),
        (&["--hosts", "h0,h1"], "--hosts", hosts),
        (&["-w", "h0"], "-w", hosts),
        (&["-hostfile", "file"], "-hostfile", file),
        (&["-machinefile", "file"], "-machinefile", file),
        (&["--machinefile=file"], "--machinefile", file),
        (&["-f", "file"], "-f", file),
        (&["-ppn", "2"], "-ppn", ranks_of_hosts),
        (&["-perhost", "2"], "-perhost", ranks_of_hosts),
        (&["-npernode", "2"], "-npernode", ranks_of_hosts),
        (&["--npernode", "2"], "--npernode", ranks_of_hosts),
        (&["-genv", "NAME", "value"], "-genv", environment),
        (&["-env", "NAME", "value"], "-env", environment),
        (&["-genvall"], "-genvall", "did you mean --launcher-arg -genvall? "),
        (&["-genvlist", "A,B"], "-genvlist", "did you mean --launcher-arg -genvlist --launcher-arg NAMES? "),
        (&["--bind-to", "none"], "--bind-to", bind_to),
        (&["-bind-to", "core"], "-bind-to", bind_to),
        (
            &["--cpu-bind=none"],
            "--cpu-bind",
            "did you mean --launcher-arg --cpu-bind=VALUE, the engine's option",
        ),
        (&["-mca", "btl", "self"], "-mca", "the engine's after --launcher-arg"),
        (&["--launcher-arg", "-ppn", "-hosts", "h0"], "-hosts", hosts),
    ] {
        // After the program such an option belongs to the program.
        for end in [&["--", "true", "-hostfile"][..], &["true", "-hostfile"]] {
            let outcome = run(&[&["run", "--size", "1M"], arguments, end].concat());
            one_line(&outcome, 2, &[&format!("unexpected argument '{option}' found"), answer]);
        }
    }
    // A request for help, and arguments that resemble one.
    let help = run(&["run", "--help"]).ok().stdout;
    for words in [&["run", "-help", "-hosts", "h0"][..], &["run", "--launcher-arg", "-hosts", "--help"]] {
        assert_eq!(run(words).ok().stdout.lines().next(), help.lines().next(), "{words:?}");
    }
    one_line(
        &run(&["run", "--size", "1M", "-n", "pernode", "--", "true"]),
        2,
        &["'pernode' for '--ranks <N>'"],
    );
}

#[test]
fn impossible_buffers_are_refused() {
    let twice = ["run", "--buffer", "name=a,size=1M", "--buffer", "name=a,size=2M", "--", "true"];
    one_line(&run(&twice), 2, &["two buffers", "\"a\""]);
    let alike = ["run", "--buffer", "name=a-b,size=1M", "--buffer", "name=a.b,size=1M", "--", "true"];
    one_line(&run(&alike), 2, &["\"a-b\"", "\"a.b\"", "HOSTBUF_ADDRESS_a_b"]);
    let mut many: Vec<String> = vec!["run".into()];
    many.extend((0..251).map(|i| format!("--buffer=name=b{i},size=1M")));
    many.extend(["--".into(), "true".into()]);
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    one_line(&run(&many), 2, &["251 buffers", "1 to 250"]);
    one_line(&run(&["run", "--", "true"]), 2, &["--size"]);
    one_line(&run(&["run", "--pages", "2m", "--buffer", "name=a,size=1M", "--", "true"]), 2, &["--buffer"]);
}

#[test]
fn programs_that_cannot_start_are_reported() {
    let folder = std::env::temp_dir();
    let folder = folder.to_str().expect("UTF-8");
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/hold.c");
    for ranks in [1, 4] {
        one_line(
            &local(ranks, "1M", &[], &["/no/such/program"]),
            127,
            &["/no/such/program", "does not exist"],
        );
        one_line(&local(ranks, "1M", &[], &["no-such-program"]), 127, &["no-such-program", "PATH"]);
        one_line(&local(ranks, "1M", &[], &[folder]), 126, &[folder, "directory"]);
        one_line(&local(ranks, "1M", &[], &[text]), 126, &[text, "executable"]);
    }
    one_line(&run(&["exec", "--size", "1M", "--", "/no/such/program"]), 127, &["does not exist"]);
    one_line(&run(&["exec", "--size", "1M", "--", folder]), 126, &["directory"]);
    // The first of two programs is valid, and its ranks wait for the others.
    let two = ["sleep", "1000", ":", "-n", "1", "--", "no-such-program"];
    one_line(&local(2, "1M", &[], &two), 127, &["no-such-program"]);
}

#[test]
fn help_and_version_are_also_commands() {
    for (words, same) in [
        (&["help", "run"][..], &["run", "--help"][..]),
        (&["help", "exec"], &["exec", "--help"]),
        (&["help"], &["--help"]),
        (&["version"], &["--version"]),
    ] {
        let (one, other) = (run(words).ok(), run(same).ok());
        assert!(!one.stdout.is_empty() && one.stdout == other.stdout, "{words:?}: {one:?} {other:?}");
    }
}

#[test]
fn system_calls_that_a_seccomp_filter_forbids_are_reported() {
    let forbid = fixture("cc", "forbid.c", &[]).expect("a C compiler is there");
    let under = |how: &str, call: &str| {
        let mut command = Command::new(&forbid);
        command.args([how, call]).arg(hostbuf());
        CommandOutput::of(command.args([
            "run",
            "--launcher",
            "local",
            "-n",
            "2",
            "--size",
            "1M",
            "--",
            "true",
        ]))
    };
    one_line(
        &under("errno", "pidfd_open"),
        82,
        &["watching process", "pidfd_open", "seccomp profile", "allow"],
    );
    one_line(&under("kill", "memfd_create"), 86, &["signal 31 (SIGSYS)", "seccomp filter", "hostbuf doctor"]);
}

#[test]
fn impossible_ranks_and_hosts_are_refused() {
    let with = |more: &[&str]| run(&[&["run", "--size", "1M"], more, &["--", "true"]].concat());
    one_line(&with(&["-n", "0"]), 2, &["-n 0"]);
    let elsewhere = "cannot start ranks on elsewhere,h5 (this host is ";
    one_line(
        &with(&["--launcher", "local", "--host", "localhost:2,elsewhere:2,h5"]),
        82,
        &[elsewhere, "): --launcher local starts ranks on this host only. Leave out --launcher or the"],
    );
    let many = with(&["--launcher", "local", "-n", "100000000"]);
    one_line(&many, 2, &["-n 100000000", "at most 65536"]);
    let second = ["sleep", "1", ":", "-n", "99999999999999", "true"];
    one_line(&local(1, "1M", &[], &second), 2, &["program 2", "99999999999999", "at most"]);
    for hosts in ["", "h0:99999999999999999999", "h0:0", "h0:x", ":2", "a b"] {
        one_line(&with(&["--launcher", "local", "--host", hosts]), 2, &["host"]);
    }
    one_line(&with(&["--hostfile", "/no/such/file"]), 85, &["/no/such/file", "No such file"]);
    one_line(&with(&["--hostfile", "/dev/null"]), 2, &["/dev/null", "names no host"]);
    let colons = ["sleep", "1", ":", ":", "-n", "1", "true"];
    one_line(&local(1, "1M", &[], &colons), 2, &["program 2"]);
    one_line(&local(1, "1M", &[], &["sleep", "1", ":", "true"]), 2, &["-n"]);
}

/// Without an MPI, too, a host gets at most as many ranks as it has slots.
#[test]
fn the_slots_of_this_host_bound_its_ranks_without_an_mpi() {
    let with = |more: &[&str], program: &[&str]| {
        run(&[&["run", "--launcher", "local", "--size", "1M", "--host"], more, &["--"], program].concat())
    };
    let ranks = with(&["localhost:3"], &["echo", "a rank"]).ok();
    assert_eq!(ranks.stdout, "a rank\n".repeat(3), "one for each slot: {ranks:?}");
    assert_eq!(with(&["localhost:3", "-n", "2"], &["echo", "a rank"]).ok().stdout, "a rank\n".repeat(2));
    let why = "-n 4 exceeds the 2 slots of localhost:2: request fewer ranks, or name more slots (--host localhost:4)";
    one_line(&with(&["localhost:2", "-n", "4"], &["true"]), 2, &[why]);
    one_line(&with(&["localhost:2", "-n", "1"], &["true", ":", "-n", "3", "true"]), 2, &[why]);
    one_line(&with(&["localhost", "-n", "2"], &["true"]), 2, &["-n 2 exceeds the 1 slot of localhost:1: "]);
}

/// The engine `local` reads neither option, so a user who gives one expects something else.
#[test]
fn options_for_an_mpirun_are_refused_without_one() {
    let with = |more: &[&str]| {
        run(&[&["run", "--launcher", "local", "--size", "1M"], more, &["--", "true"]].concat())
    };
    let why =
        "--launcher local cannot be used with --mpirun mpirun: this engine uses no mpirun. Leave out one";
    one_line(&with(&["--mpirun", "mpirun"]), 2, &[why]);
    let why =
        "--launcher-arg --oversubscribe: --launcher local starts the ranks itself and takes no such options";
    one_line(&with(&["--launcher-arg", "--oversubscribe"]), 2, &[why]);
}

#[test]
fn missing_engines_are_reported() {
    let alone = |choice: &str| {
        let mut command = Command::new(hostbuf());
        command.env("PATH", "/nowhere").env_remove("SLURM_JOB_ID");
        command.args(["run", "--launcher", choice, "-n", "2", "--size", "1M", "--", "/bin/true"]);
        CommandOutput::of(&mut command)
    };
    one_line(&alone("slurm"), 82, &["--launcher slurm", "allocation", "salloc"]);
    one_line(&alone("mpich"), 82, &["--launcher mpich", "mpirun"]);
    one_line(&alone("openmpi"), 82, &["--launcher openmpi", "mpirun"]);
    // Without an engine option hostbuf itself starts the ranks on this host.
    assert_eq!(alone("auto").ok().said(), [""; 0]);
    let mut elsewhere = Command::new(hostbuf());
    elsewhere.env("PATH", "/nowhere").env_remove("SLURM_JOB_ID");
    elsewhere.args(["run", "--host", "elsewhere:2", "--size", "1M", "--", "/bin/true"]);
    let why = "): no mpirun in PATH and no Slurm allocation";
    let words = ["cannot start ranks on elsewhere (this host is ", why, "--mpirun"];
    one_line(&CommandOutput::of(&mut elsewhere), 82, &words);
    let wrong = run(&["run", "--mpirun", "/bin/true", "-n", "1", "--size", "1M", "--", "true"]);
    one_line(&wrong, 82, &["/bin/true"]);
}

#[test]
fn a_host_that_does_not_answer_is_reported() {
    if !can_simulate() {
        return;
    }
    for flavour in ["openmpi4", "mpich4"] {
        if !flavours().iter().any(|f| f == flavour) {
            skip(&format!("a host that does not answer: {flavour} is not installed"));
            continue;
        }
        let mark = format!("silent-{flavour}-{}", std::process::id());
        let begun = Instant::now();
        let script = format!(
            "timeout 20 $HOSTBUF run -n 2 --host h0:1,nosuchhost:1 --mpirun $MPIRUN --buffer name={mark},size=1M -- sleep 1000; \
             echo status $?"
        );
        let outcome = simulated(2, flavour, &script);
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(15), "{flavour}: {took:?}");
        let status = outcome.lines("status ");
        assert!(status.len() == 1 && status[0] != "0", "{flavour}: {outcome:?}");
        let ours: Vec<&str> = outcome.stderr.lines().filter(|l| l.starts_with("hostbuf")).collect();
        assert_eq!(ours.len(), 1, "{flavour}: {outcome:?}");
        assert!(ours[0].contains("nosuchhost"), "{flavour}: it names the host: {outcome:?}");
        eventually("everything is down", SOON, || remains(&format!("name={mark},"), "").is_empty());
    }
}

#[test]
fn a_size_is_rounded_up_and_usable_to_its_last_byte() {
    let probe = probe();
    for (size, pages, length) in [
        ("1", "auto", 4096),
        ("4097", "4k", 8192),
        ("5000000", "4k", 5_001_216),
        ("1.5M", "4k", 3 << 19),
        ("3M", "thp", 4 << 20),
    ] {
        let outcome = local(2, size, &["--pages", pages], &[&probe, "touch"]).ok();
        let lines = outcome.lines(&format!("touched {length} "));
        assert_eq!(lines.len(), 2, "{size} {pages}: {outcome:?}");
        assert!(lines.iter().all(|l| l.ends_with("wrong None")), "{outcome:?}");
    }
}

#[test]
fn arguments_after_the_program_belong_to_it() {
    for separator in [&["--"][..], &[]] {
        let words = ["run", "-n2", "--launcher", "local", "--size", "4K", "--quiet"];
        let program = ["echo", "-n2", "--size", "--", "--sise"];
        let outcome = run(&[&words[..], separator, &program].concat()).ok();
        assert_eq!(outcome.stdout, "-n2 --size -- --sise\n".repeat(2), "{outcome:?}");
    }
    let outcome = run(&["exec", "--size", "4K", "echo", "-n2", "--size"]).ok();
    assert_eq!(outcome.stdout, "-n2 --size\n", "{outcome:?}");
    let words =
        ["run", "--launcher", "local", "-n", "1", "--size", "4K", "--", "true", ":", "-m", "1", "--", "true"];
    one_line(&run(&words), 2, &["program 2 of this job", "invalid \"-m\": expected -n or a program"]);
}

#[test]
fn several_programs_share_several_buffers() {
    let script = "echo $HOSTBUF_SIZE; exit $0";
    let mut command = Command::new(hostbuf());
    command.args(["run", "--launcher", "local", "-n", "1"]);
    command.args((0..16).map(|i| format!("--buffer=name=b{i},size={}K,pages=4k", 4 * (i + 1))));
    command.args(["--", "sh", "-c", script, "0", ":", "-n", "2", "--", "sh", "-c", script, "0"]);
    let outcome = CommandOutput::of(&mut command).ok();
    // Shells can compute with the values, which have no leading 0 that would make them octal.
    assert_eq!(outcome.stdout, "4096\n".repeat(3), "the first buffer: {outcome:?}");
}

#[test]
fn the_exit_status_of_the_program_is_returned() {
    for status in [1, 7, 126, 127, 255] {
        let exits = format!("exit {status}");
        let outcome = local(2, "1M", &[], &["sh", "-c", &exits]);
        assert_eq!((outcome.status, outcome.stderr.as_str()), (status, ""), "{outcome:?}");
    }
    for (signal, status) in [("KILL", 137), ("SEGV", 139), ("USR1", 138)] {
        let dies = format!("kill -{signal} $$");
        let outcome = local(2, "1M", &[], &["sh", "-c", &dies]);
        assert_eq!(outcome.status, status, "{outcome:?}");
    }
    // The status of the failed rank is returned, and its failure ends the other ranks.
    let outcome = local(2, "1M", &[], &["sleep", "1000", ":", "-n", "1", "--", "sh", "-c", "exit 3"]);
    assert_eq!(outcome.status, 3, "{outcome:?}");
}
