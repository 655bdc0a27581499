//! GPU sections in C, C++, Fortran and Python, in local jobs with a fake driver, whose GPUs
//! have memory that the CPU reaches.

use std::process::Command;

use hostbuf_tests::{CommandOutput, Scratch, hostbuf, root, skip};

use crate::gpu_blocks::fake_driver;
use crate::interface::{SANITIZERS, built, built_fortran};
use crate::python::{python, strict};

/// The section has 4 MiB on GPU 0 and 2 MiB on GPU 1.
const SECTION: &str = "name=table,size=5M,gpu=0,1";

/// Runs `program` in a job of `ranks` ranks with the section. Returns `None` if the object that
/// maps sections is not built.
fn job(ranks: usize, program: &Command) -> Option<CommandOutput> {
    if !root().join("target/lib/hostbuf/libhostbuf_register.so").is_file() {
        skip("GPU sections: the object that maps them is not built (scripts/build)");
        return None;
    }
    let driver = fake_driver("gpu-sections");
    let mut command = Command::new(hostbuf());
    command.args(["run", "--quiet", "--launcher", "local", "-n", &ranks.to_string(), "--size", "4M"]);
    command.args(["--section", SECTION, "--"]).arg(program.get_program()).args(program.get_args());
    if let Some(folder) = program.get_current_dir() {
        command.current_dir(folder);
    }
    command.env("LD_LIBRARY_PATH", &driver.0).env("FAKE_CUDA_GPUS", "2");
    Some(CommandOutput::of(&mut command).ok())
}

/// Builds a program and runs it in a job of two ranks.
fn program(compiler: &str, flags: &[&str], source: &str) {
    let Some(program) = built(compiler, flags, source) else { return };
    passes(2, &Command::new(&program.0));
}

/// Runs a program that prints one line if all is well.
fn passes(ranks: usize, program: &Command) {
    let Some(said) = job(ranks, program) else { return };
    let is_silent = said.stdout == "all as it should be\n" && said.stderr.is_empty();
    assert!(is_silent, "{}{}", said.stdout, said.stderr);
}

#[test]
fn c_uses_sections_on_gpus() {
    const SOURCE: &str = "c_gpu_sections.c";
    program("gcc", &["-std=c11"], SOURCE);
    program("g++", &["-std=c++17", "-x", "c++"], SOURCE);
    program("gcc", &[&["-std=c11"][..], &SANITIZERS].concat(), SOURCE);
}

#[test]
fn cpp_uses_sections_on_gpus() {
    const SOURCE: &str = "cpp_gpu_sections.cpp";
    program("g++", &["-std=c++17"], SOURCE);
    program("g++", &["-std=c++20"], SOURCE);
    program("g++", &[&["-std=c++17"][..], &SANITIZERS].concat(), SOURCE);
}

#[test]
fn fortran_uses_sections_on_gpus() {
    let folder = Scratch::new("fortran-gpu-sections");
    let Some(program) = built_fortran(&folder, "fortran_gpu_sections.f90") else { return };
    passes(1, &Command::new(program));
}

/// The ranks have no communicator of Python, so a job of one rank freezes the section.
#[test]
fn python_uses_sections_on_gpus() {
    let Some(python) = python() else { return };
    for (ranks, tests) in [(2, "Properties"), (1, "Frozen")] {
        let mut program = strict(&python);
        program.args(["gpu_sections.py", tests]);
        let Some(said) = job(ranks, &program) else { return };
        // The reports of unittest on standard error may be mixed.
        assert_eq!(said.stderr.matches("OK").count(), ranks, "{said:?}");
        let addresses = said.lines("the section is at ");
        assert_eq!(addresses.len(), ranks, "{said:?}");
        assert!(addresses.iter().all(|address| *address == addresses[0]), "{said:?}");
    }
}
