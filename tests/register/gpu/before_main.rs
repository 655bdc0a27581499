//! `hostbuf run --register cuda`: this test starts itself as a job.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use cudarc::driver::sys;
use hostbuf::job::{Collective, Local};
use hostbuf::{HostBuffer, Proof};

use super::copies::GpuMemory;
use crate::skip;
use hostbuf_programs::registered::registered;

const BYTES: usize = 256 << 20;
const ROUNDS: usize = 20;

/// Returns the command beside which `scripts/build` installed the object: target/release/hostbuf,
/// or the value of HOSTBUF.
pub(super) fn command() -> Option<PathBuf> {
    let named = std::env::var_os("HOSTBUF").map(PathBuf::from);
    let command = named.unwrap_or_else(|| "target/release/hostbuf".into());
    let object = command.parent().map(|bin| bin.join("../lib/hostbuf/libhostbuf_register.so"));
    object
        .is_some_and(|object| object.is_file())
        .then(|| std::path::absolute(command).expect("a folder to be in"))
}

#[test]
#[ignore = "needs a GPU"]
fn a_job_registers_its_buffer_with_the_gpu_before_main() {
    if std::env::var_os("HOSTBUF_JOB").is_some() {
        return rank();
    }
    let Some(command) = command() else {
        return skip("GPU before main: there is no target/release/hostbuf with its objects (scripts/build)");
    };
    let own = std::env::current_exe().expect("this test");
    let begun = Instant::now();
    let output = Command::new(&command)
        .args([
            "run",
            "--quiet",
            "--launcher",
            "local",
            "-n",
            "2",
            "--size",
            &BYTES.to_string(),
            "--register",
            "cuda",
            "--",
        ])
        .arg(own)
        .args([
            "--ignored",
            "--exact",
            "gpu::before_main::a_job_registers_its_buffer_with_the_gpu_before_main",
            "--nocapture",
        ])
        .env("HOSTBUF", &command)
        .stdin(Stdio::null())
        .output()
        .expect("it starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{out}{err}job of {} ms", begun.elapsed().as_millis());
    assert!(output.status.success(), "{}", output.status);
    let said = |word: &str| out.lines().filter(|line| line.contains(word)).count();
    assert_eq!((said("leader: "), said("other: ")), (1, 1));
}

/// Runs as a rank of that job.
fn rank() {
    let group = Local::from_env().expect("a rank");
    let buffer = HostBuffer::attach().expect("a buffer");
    let at = buffer.as_ptr().as_ptr() as usize;
    let found = registered();
    buffer.initialize(|arena| arena.place(7u64)).expect("it is empty");
    let leader = group.rank() == 0;
    let mut device = None;
    if leader {
        let [one] = found[..] else { panic!("the leader has {found:?}") };
        assert_eq!((one.device().as_str(), one.address as usize, one.length), ("cuda 0", at, buffer.len()));
        assert_eq!((one.writable, one.device_address), (1, at as u64));
        let gpu = GpuMemory::new(BYTES);
        let speed = copies(&gpu, at);
        // The buffer receives the copy from the GPU.
        // SAFETY: both addresses are valid for 4096 bytes, and the copy waits for its end.
        let back = unsafe { sys::cuMemcpyDtoH_v2((at + 4096) as *mut _, gpu.at(), 4096) };
        assert_eq!(back as u32, 0, "a copy into the buffer");
        let stat = Command::new(command().expect("given")).arg("stat").output().expect("it starts");
        let stat = String::from_utf8_lossy(&stat.stdout);
        let line = stat.lines().find(|line| line.contains("  cuda 0  ")).unwrap_or_else(|| panic!("{stat}"));
        assert!(line.ends_with("256 MiB (all)  read, write"), "{line}");
        println!("| registered before main | {speed:.1} GB/s H2D |");
        device = Some(gpu);
    } else {
        assert!(found.is_empty(), "{found:?}");
    }
    group.barrier().expect("both are here");
    let frozen = buffer.freeze(&group).expect("it is filled");
    assert_eq!(*frozen.proof(), Proof::Sealed);
    match device {
        Some(gpu) => {
            let [one] = registered()[..] else { panic!("after freezing: {:?}", registered()) };
            assert_eq!((one.writable, one.address as usize, one.length), (0, at, buffer.len()));
            let speed = copies(&gpu, at);
            // SAFETY: as above; the driver refuses it.
            let back = unsafe { sys::cuMemcpyDtoH_v2((at + 4096) as *mut _, gpu.at(), 4096) };
            assert_ne!(back as u32, 0, "a copy into the frozen buffer");
            println!("| the same, frozen and sealed | {speed:.1} GB/s H2D |");
            println!("leader: registered, used, frozen, sealed, registered again for reading");
        }
        None => println!("other: it has registered nothing"),
    }
    group.barrier().expect("both are here");
}

/// Returns the rate of repeated copies of the buffer to the GPU, in GB/s.
fn copies(gpu: &GpuMemory, at: usize) -> f64 {
    gpu.copy_in(at, BYTES);
    gpu.finish();
    let begun = Instant::now();
    for _ in 0..ROUNDS {
        gpu.copy_in(at, BYTES);
    }
    gpu.finish();
    (BYTES * ROUNDS) as f64 / begun.elapsed().as_secs_f64() / 1e9
}
