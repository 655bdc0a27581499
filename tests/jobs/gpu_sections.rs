//! GPU sections, with a fake driver whose memory consists of memory files. It keeps the rules
//! of a real driver about addresses (tests/fixtures/fake_cuda_ranges.h).

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use hostbuf_tests::fake_cuda::install_fake_cuda;
use hostbuf_tests::{
    CommandOutput, Scratch, can_simulate, eventually, fixture, flavours, hostbuf, program, simulated,
};

use crate::address::build;
use crate::registered::can_register;
use crate::running_job::{ARRIVAL, RunningJob, SOON, kill_now};

/// The address of the sections, if nothing is there: the buffer occupies the first window.
const AT: &str = "0x300000000000";
pub(crate) const SECTION: &str = "name=table,size=5M,gpu=0";

pub(crate) fn checks() -> String {
    program("gpu_sections").to_str().expect("UTF-8").to_owned()
}

/// A folder with the driver, whose name marks the memory of its GPUs.
pub(crate) struct FakeGpus {
    pub(crate) folder: Scratch,
    mark: String,
}

impl FakeGpus {
    /// Returns `None` if the object that maps sections is not built.
    pub(crate) fn new(name: &str) -> Option<FakeGpus> {
        let mark = format!("{name}-{}", std::process::id());
        can_register().then(|| {
            let folder = Scratch::new(name);
            install_fake_cuda(&folder);
            FakeGpus { folder, mark }
        })
    }

    /// Returns the variables of the driver for a job.
    pub(crate) fn variables<'a>(&'a self, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        let folder = self.folder.0.to_str().expect("UTF-8");
        [&[("LD_LIBRARY_PATH", folder), ("FAKE_CUDA_MARK", &self.mark)], more].concat()
    }

    /// Runs `hostbuf run --launcher local` with these options and this program. Nothing of the
    /// GPUs' memory may be left afterwards.
    #[track_caller]
    pub(crate) fn job(
        &self,
        variables: &[(&str, &str)],
        options: &[&str],
        program: &[&str],
    ) -> CommandOutput {
        self.limited_job("true", variables, options, program)
    }

    /// Runs a job as [`job`](FakeGpus::job) does, with the limits that a line of shell sets.
    #[track_caller]
    pub(crate) fn limited_job(
        &self,
        limits: &str,
        variables: &[(&str, &str)],
        options: &[&str],
        program: &[&str],
    ) -> CommandOutput {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{limits} && exec \"$0\" \"$@\"")]).arg(hostbuf());
        command.args(["run", "--quiet", "--launcher", "local"]).args(options).arg("--").args(program);
        let outcome = CommandOutput::of(command.envs(self.variables(variables)));
        self.leaves_nothing();
        outcome
    }

    /// Waits until no process holds memory of the GPUs.
    #[track_caller]
    pub(crate) fn leaves_nothing(&self) {
        eventually("the end of the GPUs' memory", SOON, || self.holders().is_empty());
    }

    /// Lists the processes that hold memory of the GPUs.
    fn holders(&self) -> Vec<String> {
        let is_ours = |text: &str| text.contains("fake GPU") && text.contains(&self.mark);
        let entries = fs::read_dir("/proc").expect("/proc is there").flatten();
        let holds = |folder: &std::path::Path| {
            let maps = fs::read_to_string(folder.join("maps")).unwrap_or_default();
            let files = fs::read_dir(folder.join("fd")).into_iter().flatten().flatten();
            let mut links = files.filter_map(|file| fs::read_link(file.path()).ok());
            maps.lines().any(is_ours) || links.any(|link| is_ours(&link.to_string_lossy()))
        };
        let folders = entries.map(|entry| entry.path()).filter(|path| holds(path));
        folders.map(|path| path.display().to_string()).collect()
    }
}

#[test]
fn ranks_follow_pointers_in_a_section_on_two_gpus() {
    let Some(gpus) = FakeGpus::new("gpu-shared") else { return };
    let section = ["-n", "3", "--section", "name=table,size=9M,gpu=0,1,0"];
    let outcome = gpus.job(&[("FAKE_CUDA_GPUS", "2")], &section, &[&checks(), "shared", "errors"]).ok();
    assert_eq!(
        outcome.lines("ok "),
        [
            format!("shared at {AT} 10 MiB 0:4 1:4 0:2"),
            "errors buffer \"default\" has no GPU section \"other\": it has table; request it with the buffer \
             (--section name=other,size=2G,gpu=0)"
                .into()
        ],
        "{outcome:?}"
    );
    // Other sections lie before and behind, and one of host memory in between.
    let sections = [
        "-n",
        "2",
        "--size",
        "8M",
        "--section",
        "name=a,size=1,gpu=1",
        "--section",
        "name=b,size=4K",
        "--section",
        "name=table,size=2M,gpu=1",
        "--section",
        "name=c,size=1,gpu=0",
    ];
    let outcome = gpus.job(&[("FAKE_CUDA_GPUS", "2")], &sections, &[&checks(), "shared"]).ok();
    assert_eq!(outcome.lines("ok "), ["shared at 0x300000200000 2 MiB 1:2"], "{outcome:?}");
}

#[test]
fn a_section_has_one_address_on_all_hosts() {
    let Some(gpus) = FakeGpus::new("gpu-hosts") else { return };
    let flavour = "openmpi4".to_owned();
    if !can_simulate() || !flavours().contains(&flavour) {
        return;
    }
    let folder = gpus.folder.0.display();
    let script = format!(
        "export LD_LIBRARY_PATH='{folder}':$LD_LIBRARY_PATH FAKE_CUDA_MARK='{}'\n\
         pass='--launcher-arg -x --launcher-arg LD_LIBRARY_PATH --launcher-arg -x --launcher-arg FAKE_CUDA_MARK'\n\
         $HOSTBUF run -q -n 4 --host h0:2,h1:2 --mpirun $MPIRUN $pass --section {SECTION} -- '{}' shared frozen is-frozen",
        gpus.mark,
        checks()
    );
    let outcome = simulated(2, &flavour, &script).ok();
    // Rank 0 of each host prints, and each host has memory of its own.
    let each = format!("shared at {AT} 6 MiB 0:6");
    let shared = outcome.lines("ok shared at ");
    assert_eq!(shared.len(), 2, "{outcome:?}");
    assert!(shared.iter().all(|line| format!("shared at {line}") == each), "{outcome:?}");
    assert_eq!(outcome.lines("ok is-frozen "), ["r--s"; 2], "{outcome:?}");
    gpus.leaves_nothing();
}

#[test]
fn a_frozen_section_is_read_only_in_place_and_for_later_programs() {
    let Some(gpus) = FakeGpus::new("gpu-frozen") else { return };
    let options = ["-n", "2", "--section", SECTION];
    let checks = checks();
    let outcome =
        gpus.job(&[], &options, &[&checks, "shared", "frozen", "is-frozen", "then", "is-frozen"]).ok();
    // The right to write is gone in both images of the ranks.
    assert_eq!(outcome.lines("ok is-frozen "), ["r--s", "r--s"], "{outcome:?}");
    assert!(outcome.lines("ok frozen ")[0].contains("GPU memory cannot be sealed"), "{outcome:?}");
    let outcome = gpus.job(&[], &options, &[&checks, "shared", "then", "shared", "is-frozen"]);
    assert!(outcome.stdout.contains("FAILED is-frozen it is not frozen"), "{outcome:?}");
}

#[test]
fn later_programs_of_a_rank_map_the_section_and_children_do_not() {
    let Some(gpus) = FakeGpus::new("gpu-later") else { return };
    let options = ["-n", "2", "--section", SECTION];
    let checks = checks();
    for before in [&["env", "A=b", "nice"][..], &["sh", "-c", "exec \"$0\" shared"]] {
        let program = [before, &[&checks, "shared"]].concat();
        let outcome = gpus.job(&[], &options, &program).ok();
        assert_eq!(outcome.lines("ok "), [format!("shared at {AT} 6 MiB 0:6")], "{outcome:?}");
    }
    let outcome = gpus.job(&[], &options, &["sh", "-c", "\"$0\" absent; true", &checks]).ok();
    for rank in ["rank 0: ", "rank 1: "] {
        let said = outcome.lines(rank);
        assert!(said[0].contains("did not map it before main"), "{outcome:?}");
        assert!(said[0].contains("If it is a child process"), "{outcome:?}");
    }
}

#[test]
fn a_section_outlives_the_rank_that_created_it() {
    let Some(gpus) = FakeGpus::new("gpu-outlives") else { return };
    // Rank 0 creates the memory, writes, and is killed or exits. Rank 1 imports it afterwards.
    let script = r#"
        if [ "$HOSTBUF_RANK" = 0 ]; then
            echo $$ > "$FOLDER/new" && mv "$FOLDER/new" "$FOLDER/pid"
            exec "$0" put 4711
        fi
        until [ -s "$FOLDER/pid" ]; do :; done
        while kill -0 "$(cat "$FOLDER/pid")" 2> /dev/null && ! grep -q '^State:.Z' "/proc/$(cat "$FOLDER/pid")/status"; do :; done
        exec "$0" get
    "#;
    let folder = gpus.folder.path("words");
    fs::create_dir(&folder).expect("it is new");
    let options = ["-n", "2", "--section", SECTION];
    let outcome = gpus.job(&[("FOLDER", &folder)], &options, &["sh", "-c", script, &checks()]).ok();
    assert_eq!(outcome.lines("got "), ["4711"], "{outcome:?}");
}

#[test]
fn the_report_has_the_sections_and_their_state() {
    let Some(gpus) = FakeGpus::new("gpu-stat") else { return };
    let command = hostbuf();
    let variables = [("HOSTBUF", command.to_str().expect("UTF-8")), ("FAKE_CUDA_GPUS", "2")];
    let options = ["-n", "2", "--section", "name=a,size=1,gpu=1", "--section", "name=table,size=6M,gpu=0,1"];
    let program = [&checks(), "shared", "stat", "frozen", "stat"].map(str::to_owned);
    let outcome = gpus.job(&variables, &options, &program.each_ref().map(String::as_str)).ok();
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let rows: Vec<String> = outcome.stdout.lines().map(words).collect();
    for row in [
        "GPU SECTION OF ADDRESS SIZE GPU STATE",
        "a default 0x300000000000 2 MiB 1 writable",
        "table default 0x300000200000 6 MiB 0,1 writable",
        "table default 0x300000200000 6 MiB 0,1 frozen",
    ] {
        assert!(rows.iter().any(|one| one == row), "{row}: {outcome:?}");
    }
}

#[test]
fn ranks_that_do_not_use_gpus_hold_the_range_and_get_an_error() {
    let Some(gpus) = FakeGpus::new("gpu-leader") else { return };
    let options = ["-n", "2", "--gpu-ranks", "leader", "--section", SECTION];
    let outcome = gpus.job(&[], &options, &[&checks(), "absent"]).ok();
    assert_eq!(outcome.lines("rank 0: "), [AT], "{outcome:?}");
    let other = &outcome.lines("rank 1: ")[0];
    assert!(other.contains("did not map it before main") && other.contains("--gpu-ranks all"), "{outcome:?}");
    // A rank that registers with another device does not use GPUs either.
    let options = [&options[..], &["--register", "mlock", "--register-ranks", "all"]].concat();
    let outcome = gpus.job(&[], &options, &[&checks(), "absent"]).ok();
    assert_eq!(outcome.lines("rank 0: "), [AT], "{outcome:?}");
    // With a driver that no rank has, the leader reports it.
    let outcome = gpus.job(&[("LD_LIBRARY_PATH", "")], &options, &["true"]);
    if outcome.status != 0 {
        assert!(outcome.stderr.contains("libcuda.so.1"), "{outcome:?}");
    }
}

#[test]
fn an_address_that_a_rank_cannot_have_is_not_chosen() {
    let Some(gpus) = FakeGpus::new("gpu-address") else { return };
    let options = ["-n", "2", "--section", SECTION];
    // The driver of each rank refuses it.
    let outcome = gpus.job(&[("FAKE_CUDA_POISON", &AT[2..])], &options, &[&checks(), "shared"]).ok();
    assert!(outcome.lines("ok shared at ")[0].starts_with("0x170000000000 "), "{outcome:?}");
    // One page of one rank is there, in a rank that uses GPUs and in one that does not.
    let plant = build("cc", "plant.c", &["-DLIBRARY", "-shared", "-fPIC"]).expect("a C compiler built this");
    for rank in ["PLANT_0", "PLANT_1"] {
        let page = "0x3000001ff000";
        let options = [&options[..], &["--gpu-ranks", "leader"]].concat();
        let mut command = Command::new(hostbuf());
        command
            .args(["run", "--quiet", "--launcher", "local"])
            .args(&options)
            .arg("--")
            .args([&checks(), "absent"]);
        command.envs(gpus.variables(&[(rank, page), ("LD_PRELOAD", &plant)]));
        let outcome = CommandOutput::of(&mut command).ok();
        assert_eq!(outcome.lines("rank 0: "), ["0x170000000000"], "{rank}: {outcome:?}");
    }
}

#[test]
fn a_section_that_cannot_be_had_is_one_error_before_any_rank_runs() {
    let Some(gpus) = FakeGpus::new("gpu-errors") else { return };
    let old = fixture("cc", "fake_cuda.c", &["-shared", "-fPIC", "-DNO_RANGES"]).expect("as the other one");
    let old_folder = gpus.folder.path("old");
    fs::create_dir(&old_folder).expect("it is new");
    for library in ["libcuda.so.1", "libcuda.so"] {
        symlink(&old, format!("{old_folder}/{library}")).expect("it is new");
    }
    let two = ("FAKE_CUDA_GPUS", "2");
    for (variables, section, words) in [
        (
            &[("CUDA_VISIBLE_DEVICES", "0")][..],
            "name=table,size=5M,gpu=3",
            &["gpu=3", "sees only GPU 0 of the host", "add GPU 3 to CUDA_VISIBLE_DEVICES"][..],
        ),
        (
            &[("FAKE_CUDA_ROOM", "4194304")],
            SECTION,
            &["section \"table\" with 6 MiB on GPU 0", "are free", "request less"],
        ),
        (
            &[two, ("FAKE_CUDA_NO_PEERS", "1")],
            SECTION,
            &["access of GPU 1", "no peer access", "CUDA_VISIBLE_DEVICES"],
        ),
        (
            &[("LD_LIBRARY_PATH", &old_folder)],
            SECTION,
            &["has no cuMemGetAllocationGranularity: install a newer one"],
        ),
    ] {
        let outcome = gpus.job(variables, &["-n", "3", "--section", section], &["echo", "ran"]);
        assert_eq!((outcome.status, outcome.stdout.as_str()), (82, ""), "{outcome:?}");
        assert_eq!(outcome.said().len(), 1, "{outcome:?}");
        for word in ["hostbuf run: rank ", " on "].iter().chain(words) {
            assert!(outcome.stderr.contains(word), "{word}: {outcome:?}");
        }
    }
    for (options, words) in [
        (&["--size", "4M", "--gpu-ranks", "all"][..], "--gpu-ranks without a GPU section"),
        (&["--section", "name=a,size=1M,gpu=0,numa=0"], "has gpu=0 and numa=0"),
        (&["--section", "name=a,size=1M,gpu=x"], "invalid gpu=\"x\""),
    ] {
        let outcome = gpus.job(&[], options, &["echo", "ran"]);
        assert_eq!((outcome.status, outcome.stdout.as_str()), (2, ""), "{outcome:?}");
        assert!(outcome.stderr.contains(words), "{outcome:?}");
    }
}

#[test]
fn the_doctor_checks_a_requested_section() {
    let Some(gpus) = FakeGpus::new("gpu-requested") else { return };
    for (section, status, says) in [
        (SECTION, 0, "5 MiB on GPU 0: visible here, and able to share memory"),
        ("name=table,size=5M,gpu=0,2", 1, "sees only GPU 0 of the host"),
    ] {
        let mut command = Command::new(hostbuf());
        let outcome =
            CommandOutput::of(command.args(["doctor", "--section", section]).envs(gpus.variables(&[])));
        assert_eq!(outcome.status, status, "{outcome:?}");
        let line =
            outcome.stdout.lines().find(|line| line.contains("  --section gpu=  ")).expect("a finding");
        assert!(line.contains(says), "{line}");
    }
}

#[test]
fn a_section_that_one_gpu_cannot_freeze_stays_writable() {
    let Some(gpus) = FakeGpus::new("gpu-thaw") else { return };
    let variables = [("FAKE_CUDA_GPUS", "2"), ("FAKE_CUDA_WRITABLE", "1")];
    let options = ["-n", "2", "--section", SECTION];
    let outcome = gpus.job(&variables, &options, &[&checks(), "shared", "frozen", "shared", "is-frozen"]);
    assert_eq!(outcome.status, 1, "{outcome:?}");
    let failed = outcome.lines("FAILED frozen ");
    assert!(failed.len() == 1 && failed[0].contains("read-only access of GPU 1 of "), "{outcome:?}");
    // The ranks write again, and nothing is recorded.
    assert_eq!(outcome.lines("ok shared ").len(), 2, "{outcome:?}");
    assert_eq!(outcome.lines("FAILED is-frozen "), ["it is not frozen"], "{outcome:?}");
}

#[test]
fn a_further_program_in_the_place_of_a_rank_finds_the_section() {
    let Some(gpus) = FakeGpus::new("gpu-further") else { return };
    let flavour = "openmpi4".to_owned();
    if !can_simulate() || !flavours().contains(&flavour) {
        return;
    }
    // The engine passes few variables on, so the script has them.
    let rank = format!(
        "export LD_LIBRARY_PATH='{folder}':$LD_LIBRARY_PATH FAKE_CUDA_MARK='{mark}' DONE='{folder}/done'\n\
         job() {{ '{hostbuf}' exec --section {SECTION} -- \"$@\"; }}\n\
         if [ $OMPI_COMM_WORLD_RANK = 0 ]; then job '{checks}' put 4711 && job '{checks}' get; touch $DONE; \
         else job sh -c 'until [ -e $DONE ]; do :; done'; fi\n",
        folder = gpus.folder.0.display(),
        mark = gpus.mark,
        hostbuf = hostbuf().display(),
        checks = checks()
    );
    let file = gpus.folder.path("rank");
    fs::write(&file, rank).expect("the folder is writable");
    let script = format!("$MPIRUN $MPIRUN_FLAGS -np 2 bash '{file}'");
    let outcome = simulated(1, &flavour, &script).ok();
    assert_eq!(outcome.lines("got "), ["4711"], "{outcome:?}");
    gpus.leaves_nothing();
}

#[test]
fn the_descriptors_of_many_pieces_count_against_the_limit() {
    let Some(gpus) = FakeGpus::new("gpu-pieces") else { return };
    let many = format!("name=table,size=4M,gpu={}", vec!["0"; 128].join(","));
    let options = ["-n", "2", "--section", &many];
    let outcome = gpus.job(&[], &options, &[&checks(), "shared"]).ok();
    assert!(outcome.lines("ok shared at ")[0].starts_with("0x300000000000 256 MiB 0:2 0:2 "), "{outcome:?}");
    let mut command = Command::new("sh");
    let limited = "ulimit -n 200; exec \"$0\" \"$@\"";
    command
        .args(["-c", limited])
        .arg(hostbuf())
        .args(["run", "--quiet", "--launcher", "local"])
        .args(options);
    let outcome = CommandOutput::of(command.args(["--", "echo", "ran"]).envs(gpus.variables(&[])));
    assert!(outcome.status != 0 && outcome.stdout.is_empty(), "{outcome:?}");
    assert!(outcome.stderr.contains("ulimit"), "{outcome:?}");
    assert_eq!(outcome.said().len(), 1, "{outcome:?}");
    gpus.leaves_nothing();
}

#[test]
fn the_doctor_tries_what_the_driver_does_with_addresses() {
    let folders =
        [("gpu-doctor", &["-shared", "-fPIC"][..]), ("gpu-doctor-old", &["-shared", "-fPIC", "-DNO_RANGES"])];
    for ((name, flags), (mark, says)) in folders.into_iter().zip([
        ("ok", "The driver has refused addresses that were mapped at cuInit, and refused those that were requested"),
        ("note", "they are not available: the driver has no cuMemGetAllocationGranularity"),
    ]) {
        let folder = Scratch::new(name);
        let driver = fixture("cc", "fake_cuda.c", flags).expect("a C compiler built this test's crate");
        for library in ["libcuda.so.1", "libcuda.so"] {
            symlink(&driver, folder.path(library)).expect("it is new");
        }
        let mut command = Command::new(hostbuf());
        let outcome = CommandOutput::of(command.args(["doctor", "--json"]).env("LD_LIBRARY_PATH", &folder.0));
        let report: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("JSON");
        let checks = report["checks"].as_array().expect("a list");
        let line =
            checks.iter().find(|check| check["name"] == "GPU sections").expect("there is a driver");
        assert!(
            line["mark"] == mark && line["says"].as_str().is_some_and(|text| text.contains(says)),
            "{line}"
        );
    }
}

#[test]
fn the_example_follows_pointers_in_both_memories() {
    let Some(gpus) = FakeGpus::new("gpu-example") else { return };
    let example = program("gpu_table");
    let options = ["-n", "2", "--section", "name=host,size=2M", "--section", "name=table,size=2M,gpu=0"];
    let outcome = gpus.job(&[], &options, &[example.to_str().expect("UTF-8")]).ok();
    for (rank, memory) in [(0, "GPU"), (1, "GPU"), (0, "host"), (1, "host")] {
        let line =
            format!("rank {rank}      followed the pointers in {memory} memory: all values are right, ");
        assert_eq!(outcome.lines(&line).len(), 1, "{line}: {outcome:?}");
    }
    assert!(
        outcome.stdout.starts_with("table       65536 keys, 2 MiB at 0x300000000000 on GPU 0"),
        "{outcome:?}"
    );
}

#[test]
fn a_rank_that_is_killed_while_it_maps_ends_the_job() {
    let Some(gpus) = FakeGpus::new("gpu-killed") else { return };
    for function in [
        "cuMemAddressReserve",
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemExportToShareableHandle",
        "cuMemImportFromShareableHandle",
    ] {
        let options = ["-n", "2", "--section", SECTION];
        let outcome = gpus.job(&[("FAKE_CUDA_KILL", function)], &options, &["echo", "ran"]);
        assert_eq!((outcome.status, outcome.stdout.as_str()), (87, ""), "{function}: {outcome:?}");
        assert_eq!(outcome.said().len(), 1, "{function}: {outcome:?}");
    }
}

#[test]
fn nothing_is_left_whatever_is_killed() {
    let Some(gpus) = FakeGpus::new("gpu-kills") else { return };
    for victim in ["launcher", "agent", "rank 0", "rank 1"] {
        let mark = format!("gpu-kills-{}", victim.replace(' ', "-"));
        let section = format!("buffer={mark}-{},{SECTION}", std::process::id());
        let options = ["-n", "2", "--section", &section];
        let mut job = RunningJob::start(&mark, "size=4M", &options, &[&checks(), "wait"], |command, dir| {
            command.envs(gpus.variables(&[])).env("HELD", dir.path("held"));
        });
        eventually("the ranks", ARRIVAL, || job.out().contains("ok waiting"));
        assert!(gpus.holders().len() >= 3, "two ranks and the agent: {:?}", gpus.holders());
        let pid = match victim {
            "launcher" => Some(job.pid()),
            "agent" => job.agent(),
            rank => job.rank(usize::from(rank.ends_with('1'))),
        };
        kill_now(pid.expect("it runs"));
        if victim == "agent" {
            // The ranks go on with what they have mapped.
            fs::write(job.dir.0.join("held"), "").expect("the folder is writable");
        }
        job.end(ARRIVAL);
        job.leaves_nothing(victim);
        gpus.leaves_nothing();
    }
}
