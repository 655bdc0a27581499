//! Blocks of a pool, transfers of files and copies of tensors on a GPU in C, C++ and Python, with a
//! fake driver, whose GPU has memory that the CPU reaches.

use std::process::Command;

use hostbuf_tests::fake_cuda::install_fake_cuda;
use hostbuf_tests::{CommandOutput, Scratch};

use crate::interface::{Built, SANITIZERS, built};
use crate::pool::PoolBroker;
use crate::python::{python, strict};

/// Installs the fake driver in a new folder.
pub fn fake_driver(name: &str) -> Scratch {
    let folder = Scratch::new(name);
    install_fake_cuda(&folder);
    folder
}

/// Runs the Python tests in `file` with the fake driver.
fn python_tests(file: &str) {
    let Some(python) = python() else { return };
    let folder = fake_driver(file);
    let mut command = strict(&python);
    command.arg(file).env("LD_LIBRARY_PATH", &folder.0);
    let outcome = CommandOutput::of(command.env("FAKE_CUDA_PENDING", folder.path("pending"))).ok();
    // unittest reports on standard error. No test is skipped with this driver.
    assert!(outcome.stderr.ends_with("\nOK\n"), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("Ran 0 tests"), "{}", outcome.stderr);
}

#[test]
fn python_shares_blocks_on_a_gpu() {
    python_tests("gpu_blocks.py");
}

#[test]
fn python_reads_files_into_a_gpu() {
    python_tests("gpu_files.py");
}

/// Runs a program with the fake driver.
fn run(program: &Built, broker: Option<&str>) {
    let folder = fake_driver("gpu-program");
    let mut command = Command::new(&program.0);
    command.args(broker).env("LD_LIBRARY_PATH", &folder.0).env("ASAN_OPTIONS", "detect_leaks=1");
    let said = CommandOutput::of(&mut command).ok();
    let is_silent = said.stdout == "all as it should be\n" && said.stderr.is_empty();
    assert!(is_silent, "{}{}", said.stdout, said.stderr);
}

/// Builds a program and runs it with the fake driver and a broker.
fn program(compiler: &str, flags: &[&str], source: &str) {
    let Some(program) = built(compiler, flags, source) else { return };
    let broker = PoolBroker::start("gpu-blocks");
    run(&program, Some(&broker.name));
}

/// Builds a program and runs it with the fake driver alone.
fn program_without_broker(compiler: &str, flags: &[&str], source: &str) {
    let Some(program) = built(compiler, flags, source) else { return };
    run(&program, None);
}

#[test]
fn c_shares_blocks_on_a_gpu() {
    const SOURCE: &str = "c_gpu_blocks.c";
    program("gcc", &["-std=c11"], SOURCE);
    program("g++", &["-std=c++17", "-x", "c++"], SOURCE);
    program("gcc", &[&["-std=c11"][..], &SANITIZERS].concat(), SOURCE);
}

#[test]
fn cpp_shares_blocks_on_a_gpu() {
    const SOURCE: &str = "cpp_gpu_blocks.cpp";
    program("g++", &["-std=c++17"], SOURCE);
    program("g++", &["-std=c++20"], SOURCE);
    program("g++", &[&["-std=c++17"][..], &SANITIZERS].concat(), SOURCE);
}

#[test]
fn c_reads_files_into_a_gpu() {
    const SOURCE: &str = "c_gpu_files.c";
    program_without_broker("gcc", &["-std=c11"], SOURCE);
    program_without_broker("g++", &["-std=c++17", "-x", "c++"], SOURCE);
    program_without_broker("gcc", &[&["-std=c11"][..], &SANITIZERS].concat(), SOURCE);
}

#[test]
fn c_copies_tensors_to_a_gpu() {
    const SOURCE: &str = "c_gpu_load.c";
    program_without_broker("gcc", &["-std=c11"], SOURCE);
    program_without_broker("g++", &["-std=c++17", "-x", "c++"], SOURCE);
    program_without_broker("gcc", &[&["-std=c11"][..], &SANITIZERS].concat(), SOURCE);
}

#[test]
fn cpp_copies_tensors_to_a_gpu() {
    const SOURCE: &str = "cpp_gpu_load.cpp";
    program_without_broker("g++", &["-std=c++17"], SOURCE);
    program_without_broker("g++", &["-std=c++20"], SOURCE);
    program_without_broker("g++", &[&["-std=c++17"][..], &SANITIZERS].concat(), SOURCE);
}
