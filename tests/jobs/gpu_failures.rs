//! The errors of jobs with GPU sections name the cause, the limit and the remedy. They use the fake
//! driver of `gpu_sections.rs`.

use std::fs;
use std::process::Command;

use hostbuf_tests::{CommandOutput, hostbuf};

use crate::gpu_sections::{FakeGpus, SECTION, checks};

#[test]
fn a_limited_address_space_is_named_and_not_the_buffer() {
    let Some(gpus) = FakeGpus::new("gpu-limited") else { return };
    for ranks in ["all", "leader"] {
        let options = ["-n", "2", "--gpu-ranks", ranks, "--section", "name=table,size=4G,gpu=0"];
        let outcome = gpus.limited_job("ulimit -v 500000", &[], &options, &["echo", "ran"]);
        assert_eq!((outcome.status, outcome.stdout.as_str()), (84, ""), "{outcome:?}");
        assert_eq!(outcome.said().len(), 1, "{outcome:?}");
        for words in ["rank 0 on ", "4 GiB at 0x", "is limited to 488.3 MiB (RLIMIT_AS): raise `ulimit -v`"] {
            assert!(outcome.stderr.contains(words), "{words}: {outcome:?}");
        }
        assert!(!outcome.stderr.contains("memfd"), "{outcome:?}");
    }
}

#[test]
fn the_doctor_and_the_job_name_a_gpu_without_peer_access() {
    let Some(gpus) = FakeGpus::new("gpu-peers") else { return };
    let section = "name=table,size=4M,gpu=0,1,0";
    let variables = [("FAKE_CUDA_GPUS", "2"), ("FAKE_CUDA_NO_PEERS", "1")];
    for (variables, status) in [(&variables[..1], 0), (&variables, 1)] {
        let variables = gpus.variables(variables);
        let mut command = Command::new(hostbuf());
        let doctor =
            CommandOutput::of(command.args(["doctor", "--section", section]).envs(variables.clone()));
        let line = doctor.stdout.lines().find(|line| line.contains("  --section gpu=  ")).expect("a finding");
        assert_eq!(doctor.status, status, "{doctor:?}");
        let job = gpus.job(&variables, &["-n", "2", "--section", section], &["true"]);
        assert_eq!(job.status == 0, status == 0, "{job:?}");
        for words in ["access of GPU ", "no peer access", "name GPUs with peer access in gpu="] {
            let says = [line.contains(words), job.stderr.contains(words)];
            assert_eq!(says, [status == 1; 2], "{words}: {line} {job:?}");
        }
    }
}

#[test]
fn a_later_program_with_few_descriptors_names_the_limit() {
    let Some(gpus) = FakeGpus::new("gpu-descriptors") else { return };
    let many = format!("name=table,size=4M,gpu={}", vec!["0"; 128].join(","));
    for limit in [60, 100, 160, 200] {
        let script = format!("ulimit -n {limit}; exec \"$0\" shared");
        let options = ["-n", "2", "--section", &many];
        let outcome = gpus.job(&[], &options, &["sh", "-c", &script, &checks()]);
        assert!(outcome.status != 0 && !outcome.said().is_empty(), "{limit}: {outcome:?}");
        for line in outcome.said() {
            assert!(line.starts_with("hostbuf: rank "), "{limit}: {line}");
            let names = format!("this process may open {limit} files (RLIMIT_NOFILE), has ");
            let needs = line.contains(" open and needs up to ");
            assert!(
                line.contains(&names) && needs && line.to_lowercase().contains("raise `ulimit -n`"),
                "{line}"
            );
        }
    }
    let script = "ulimit -n 300; exec \"$0\" shared";
    gpus.job(&[], &["-n", "2", "--section", &many], &["sh", "-c", script, &checks()]).ok();
}

#[test]
fn a_gpu_that_the_host_lacks_needs_no_variable() {
    let Some(gpus) = FakeGpus::new("gpu-lacks") else { return };
    let outcome = gpus.job(&[], &["-n", "2", "--section", "name=table,size=4M,gpu=99"], &["echo", "ran"]);
    assert_eq!((outcome.status, outcome.stdout.as_str()), (82, ""), "{outcome:?}");
    assert!(outcome.stderr.trim_end().ends_with(": request a GPU that it sees"), "{outcome:?}");
}

#[test]
fn a_driver_that_cannot_be_loaded_is_not_reported_as_absent() {
    let Some(gpus) = FakeGpus::new("gpu-corrupt") else { return };
    let folder = gpus.folder.path("corrupt");
    fs::create_dir(&folder).expect("it is new");
    fs::write(format!("{folder}/libcuda.so.1"), "no library").expect("the folder is writable");
    fs::write(format!("{folder}/libcuda.so"), "no library").expect("the folder is writable");
    let variables = [("LD_LIBRARY_PATH", folder.as_str())];
    let outcome = gpus.job(&variables, &["-n", "2", "--section", SECTION], &["echo", "ran"]);
    assert_eq!((outcome.status, outcome.stdout.as_str()), (82, ""), "{outcome:?}");
    for words in ["cannot be loaded: ", &folder, "install NVIDIA's driver again, or correct LD_LIBRARY_PATH"]
    {
        assert!(outcome.stderr.contains(words), "{words}: {outcome:?}");
    }
    let mut command = Command::new(hostbuf());
    let doctor = CommandOutput::of(command.arg("doctor").envs(variables));
    assert!(doctor.stdout.contains("libcuda.so.1 cannot be loaded: "), "{doctor:?}");
}

#[test]
fn a_rank_that_is_killed_at_the_start_is_named_with_the_signal_and_the_remedy() {
    let Some(gpus) = FakeGpus::new("gpu-signal") else { return };
    for function in ["cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemImportFromShareableHandle"] {
        let options = ["-n", "2", "--section", SECTION];
        let outcome = gpus.job(&[("FAKE_CUDA_KILL", function)], &options, &["echo", "ran"]);
        for words in
            ["was ended by signal 9 (SIGKILL) before all ranks had the buffer: ", "start the job again"]
        {
            assert!(outcome.stderr.contains(words), "{function}: {words}: {outcome:?}");
        }
    }
}

#[test]
fn a_job_of_gpu_sections_alone_takes_no_huge_page() {
    let Some(gpus) = FakeGpus::new("gpu-pages") else { return };
    for pages in ["1g", "2m", "thp"] {
        let options = ["-n", "2", "--pages", pages, "--section", SECTION];
        let script = "[ $HOSTBUF_SIZE = 4096 ] && exec \"$0\" shared";
        gpus.job(&[], &options, &["sh", "-c", script, &checks()]).ok();
    }
}
