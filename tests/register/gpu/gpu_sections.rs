//! GPU sections: these tests start themselves as jobs. A section of one GPU is shared and
//! measured by two ranks; with two GPUs, so is one that lies on both.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hostbuf::gpu::{GpuHolds, HostGpus, MappedSections};
use hostbuf::job::{Collective, Local};
use hostbuf::segment::GpuPiece;
use hostbuf::{GpuSection, HostBuffer, Proof};
use hostbuf_cuda::{CudaContext, CudaStream, DeviceMemory, DeviceSpan, Driver};
use hostbuf_os::session::Session;
use hostbuf_protocol::message::{Hello, Message, Role};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::before_main::command;
use super::figures::median;
use super::streams::first_gpu;
use crate::skip;

const GIB: usize = 1 << 30;
/// The size of the section that is copied.
const BYTES: usize = GIB;
/// The rounds of a measurement.
const ROUNDS: usize = 15;
/// The copies of a round.
const COPIES: usize = 16;
/// The smallest ratio of the rates of copies from and to a section, and between ordinary memory.
const RATIO: f64 = 0.98;
/// The time after SIGKILL in which the memory of the GPU must be free.
const FREED: Duration = Duration::from_secs(1);

/// Returns the command that runs the test `name` of this file as a job with this section.
fn job(name: &str, section: &str) -> Option<Command> {
    let Some(hostbuf) = command() else {
        skip("GPU sections: there is no target/release/hostbuf with its objects (scripts/build)");
        return None;
    };
    let own = std::env::current_exe().expect("this test");
    let mut command = Command::new(&hostbuf);
    command.args(["run", "--quiet", "--launcher", "local", "-n", "2", "--section", section, "--"]);
    command.arg(own).args(["--ignored", "--exact", &format!("gpu::gpu_sections::{name}"), "--nocapture"]);
    command.env("HOSTBUF", &hostbuf).stdin(Stdio::null());
    Some(command)
}

/// Runs such a job, and prints what it prints.
fn run(name: &str, section: &str) {
    let Some(mut command) = job(name, section) else { return };
    let output = command.output().expect("it starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{out}{err}");
    assert!(output.status.success(), "{}", output.status);
    assert_eq!(out.lines().filter(|line| line.contains("rank is done")).count(), 2);
}

#[test]
#[ignore = "needs a GPU"]
fn a_section_is_shared_and_as_fast_as_other_memory() {
    if std::env::var_os("HOSTBUF_JOB").is_some() {
        return rank();
    }
    run("a_section_is_shared_and_as_fast_as_other_memory", &format!("name=table,size={BYTES},gpu=0"));
}

#[test]
#[ignore = "needs two GPUs"]
fn a_section_on_two_gpus_is_shared() {
    if std::env::var_os("HOSTBUF_JOB").is_some() {
        return rank();
    }
    if Driver::find().and_then(Driver::gpu_count).expect("a driver") < 2 {
        return skip("a section on two GPUs: there is one");
    }
    run("a_section_on_two_gpus_is_shared", &format!("name=table,size={BYTES},gpu=0,1"));
}

/// Runs as a rank of these jobs.
fn rank() {
    let group = Local::from_env().expect("a rank");
    let buffer = HostBuffer::attach().expect("a buffer");
    let section = buffer.gpu_section("table").expect("it is mapped");
    let context = CudaContext::retain(&first_gpu()).expect("a context");
    let stream = CudaStream::new(&context).expect("a stream");
    let bytes = section.len();
    // Rank 0 writes all of the section, and rank 1 reads it.
    let pattern: Vec<u8> = (0..bytes).map(|at| (at / 4096 * 31 + at) as u8).collect();
    if group.rank() == 0 {
        // SAFETY: the bytes live until the copy has ended.
        unsafe { stream.copy_to_device(&raw const pattern[..], section.address()) }.expect("copied");
        stream.synchronize().expect("it ends");
    }
    group.barrier().expect("both are here");
    if group.rank() == 1 {
        let mut found = vec![0; bytes];
        let whole = DeviceSpan::new(section.address(), bytes);
        // SAFETY: as above.
        unsafe { stream.copy_to_host(whole, &raw mut found[..]) }.expect("copied");
        stream.synchronize().expect("it ends");
        assert!(found == pattern, "rank 1 reads what rank 0 has written");
        measure_mapping(&section);
    }
    group.barrier().expect("both are here");
    if group.rank() == 0 {
        measure_copies(&context, &stream, &section);
    }
    group.barrier().expect("both are here");
    let proof = section.freeze(&group).expect("all GPUs can lose the right to write");
    assert!(matches!(proof, Proof::Weaker { .. }) && section.is_frozen().expect("it is known"));
    let mut word = [0; 8];
    let first = DeviceSpan::new(section.address(), 8);
    // SAFETY: as above.
    unsafe { stream.copy_to_host(first, &raw mut word[..]) }.expect("copied");
    stream.synchronize().expect("it ends");
    assert_eq!(word, pattern[..8], "it can be read");
    // SAFETY: as above; the driver refuses the copy, or its end is an error.
    let written = unsafe { stream.copy_to_device(&raw const word[..], section.address()) };
    assert!(written.and_then(|()| stream.synchronize()).is_err(), "a copy into the frozen section");
    println!("rank is done");
    // The context is broken now.
    std::process::exit(0);
}

/// Compares copies from, to and within the section with those between two ordinary memories.
fn measure_copies(context: &CudaContext, stream: &CudaStream, section: &GpuSection) {
    let half = section.len() / 2;
    let memory = || DeviceMemory::new(context, half).expect("memory");
    let (one, other) = (memory(), memory());
    let (low, high) = (section.address(), section.address() + half as u64);
    let ways = [
        ("cuMemAlloc to cuMemAlloc", one.address(), other.address()),
        ("section to cuMemAlloc", low, other.address()),
        ("cuMemAlloc to section", one.address(), high),
        ("within the section", low, high),
    ];
    let mut rates = ways.map(|_| Vec::new());
    for round in 0..=ROUNDS {
        for ((_, from, to), rates) in ways.iter().zip(&mut rates) {
            let begun = Instant::now();
            for _ in 0..COPIES {
                // SAFETY: both ranges have this length, and nothing else uses them.
                unsafe { stream.copy_on_device(DeviceSpan::new(*from, half), *to) }.expect("copied");
            }
            stream.synchronize().expect("it ends");
            // The first round does not count.
            if round > 0 {
                rates.push((COPIES * half) as f64 / begun.elapsed().as_secs_f64() / 1e9);
            }
        }
    }
    let gpus: Vec<String> = section.pieces().iter().map(|piece| piece.gpu.to_string()).collect();
    println!("\n| copies of 512 MiB, section on GPU {} | GB/s | ratio |", gpus.join(", "));
    println!("| --- | --- | --- |");
    let rates = rates.map(median);
    for ((way, ..), rate) in ways.iter().zip(rates) {
        println!("| {way} | {rate:.0} | {:.3} |", rate / rates[0]);
    }
    println!();
    // A section on several GPUs is copied through the link between them.
    if gpus.len() == 1 {
        assert!(rates[1..].iter().all(|rate| rate / rates[0] >= RATIO), "{rates:?}");
    }
}

/// Measures how long it takes to map the section, once more, at another address.
fn measure_mapping(section: &GpuSection) {
    let gpus = HostGpus::find().expect("a driver");
    let pieces: Vec<GpuPiece> = section.pieces().to_vec();
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let descriptors = descriptors();
        let begun = Instant::now();
        let range = GpuHolds::new(gpus.first()).take(0x4100_0000_0000, section.len()).expect("it is free");
        let mapped = MappedSections::import(&gpus, range, &pieces, &descriptors).expect("mapped");
        times.push(begun.elapsed().as_secs_f64() * 1e3);
        drop(mapped);
    }
    let (time, visible) = (median(times), Driver::find().and_then(Driver::gpu_count).expect("a driver"));
    println!("\n| mapping an existing section of {} MiB | GPUs with access | ms |", section.len() >> 20);
    println!("| --- | --- | --- |");
    println!("| import, reserve, map, access | {visible} | {time:.2} |\n");
    let limit = if visible == 1 { 1.0 } else { 15.0 };
    assert!(time <= limit, "{time} ms");
}

/// Asks the agent for the descriptors of the job's sections.
fn descriptors() -> Vec<OwnedFd> {
    let job = std::env::var("HOSTBUF_JOB").expect("a job");
    let hello = Message::Hello { hello: Hello::of(Role::GpuUser), command: b"" };
    let limit = Duration::from_secs(10);
    let session = Session::open(&job, Some(limit), &hello).expect("the agent");
    session.first_answer(limit).expect("its answer").descriptors
}

#[test]
#[ignore = "needs a GPU"]
fn nothing_is_left_on_the_gpu_whatever_is_killed() {
    const SIZE: usize = 4 * GIB;
    if std::env::var_os("HOSTBUF_JOB").is_some() {
        HostBuffer::attach().and_then(|buffer| buffer.gpu_section("table")).expect("it is mapped");
        println!("ready {}", std::process::id());
        loop {
            nix::unistd::pause();
        }
    }
    let context = CudaContext::retain(&first_gpu()).expect("a context");
    let before = free(&context);
    let mut rows = Vec::new();
    for victim in ["the launcher", "a rank", "the agent, then both ranks"] {
        let Some(mut command) =
            job("nothing_is_left_on_the_gpu_whatever_is_killed", &format!("name=table,size={SIZE},gpu=0"))
        else {
            return;
        };
        let mut launcher = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let ranks = ready_ranks(&mut launcher);
        assert!(before - free(&context) >= SIZE, "the section takes memory");
        let pid = Pid::from_raw(launcher.id() as i32);
        let end = |pid| kill(pid, Signal::SIGKILL).expect("it runs");
        match victim {
            "a rank" => end(Pid::from_raw(ranks[0])),
            "the launcher" => end(pid),
            _ => {
                end(agent_of(launcher.id() as i32));
                ranks.iter().for_each(|&rank| end(Pid::from_raw(rank)));
            }
        }
        let begun = Instant::now();
        // The contexts of the ranks take some memory too.
        while before - free(&context) > SIZE / 64 && begun.elapsed() < 5 * FREED {
            std::thread::yield_now();
        }
        let took = begun.elapsed();
        rows.push(format!("| {victim} | {} ms |", took.as_millis()));
        let _ = launcher.wait();
        assert!(took <= FREED, "{victim}: {took:?}");
    }
    println!("\n| killed by SIGKILL | memory of the GPU free after |\n| --- | --- |\n{}\n", rows.join("\n"));
}

/// Waits until both ranks have printed their processes.
fn ready_ranks(launcher: &mut Child) -> Vec<i32> {
    let lines = BufReader::new(launcher.stdout.take().expect("a pipe")).lines();
    let mut ranks = lines.map_while(Result::ok).filter_map(|line| line.strip_prefix("ready ")?.parse().ok());
    let found: Vec<i32> = ranks.by_ref().take(2).collect();
    assert_eq!(found.len(), 2, "two ranks are ready");
    // The other end of the pipe stays open for the ranks.
    std::mem::forget(ranks);
    found
}

/// Returns the agent that is a child of a launcher.
fn agent_of(launcher: i32) -> Pid {
    let entries = std::fs::read_dir("/proc").expect("/proc is there").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_agent = |pid: &i32| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|&byte| byte == 0).nth(1) == Some(b"agent")
    };
    let mut found = pids.filter(|&pid| hostbuf_os::process::parent(pid) == Some(launcher)).filter(is_agent);
    Pid::from_raw(found.next().expect("an agent"))
}

/// Returns the free memory of the GPU in bytes.
fn free(context: &CudaContext) -> usize {
    let _current = context.make_current().expect("a context");
    let (mut free, mut total) = (0, 0);
    // SAFETY: both are local variables, and the context is current.
    let answer = unsafe { cudarc::driver::sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
    assert_eq!(answer as u32, 0);
    free
}
