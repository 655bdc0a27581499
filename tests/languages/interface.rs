//! The interfaces in one process: tests/fixtures/c_interface.c, c_sections.c, c_pool.c, c_files.c,
//! c_load.c, cpp_interface.cpp, cpp_pool.cpp, cpp_files.cpp, cpp_load.cpp and
//! fortran_interface.f90, built without a warning, with the address and the undefined-behaviour
//! sanitizers, under valgrind, and with the static library.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use hostbuf_tests::{CommandOutput, Scratch, root, skip};

/// A built program, removed on drop.
pub struct Built(pub PathBuf);

impl Drop for Built {
    fn drop(&mut self) {
        // The file may be missing after a failed test.
        let _ = fs::remove_file(&self.0);
    }
}

/// Builds `source` with `compiler` and `flags`, without a warning. Returns `None` if a prerequisite
/// is missing.
pub fn built(compiler: &str, flags: &[&str], source: &str) -> Option<Built> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let library = root().join("target/lib");
    if !library.join("libhostbuf.so").exists() {
        skip("libhostbuf's interfaces: there is no libhostbuf (scripts/build)");
        return None;
    }
    if Command::new(compiler).arg("--version").output().is_err() {
        skip(&format!("libhostbuf by {compiler}: it is not installed"));
        return None;
    }
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let made = Built(root().join(format!("target/fixtures/interface-{}-{number}", std::process::id())));
    let rpath = format!("-Wl,-rpath,{}", library.display());
    let mut command = Command::new(compiler);
    command.current_dir(root()).args(["-Wall", "-Wextra", "-pedantic", "-Werror", "-g", "-O1", "-Iinclude"]);
    command.args(flags.iter().filter(|flag| !flag.ends_with(".a"))).arg(format!("tests/fixtures/{source}"));
    command.arg("-o").arg(&made.0).args(["-x", "none"]);
    match flags.iter().find(|flag| flag.ends_with(".a")) {
        Some(archive) => command.arg(archive).args(["-lpthread", "-ldl", "-lm"]),
        None => command.arg("-L").arg(&library).args(["-lhostbuf", &rpath]),
    };
    CommandOutput::of(&mut command).ok();
    Some(made)
}

/// Builds `source` and runs it.
fn interface(compiler: &str, flags: &[&str], source: &str) {
    let Some(program) = built(compiler, flags, source) else { return };
    let said = CommandOutput::of(Command::new(&program.0).env("ASAN_OPTIONS", "detect_leaks=1")).ok();
    assert!(
        said.stdout.ends_with("all as it should be\n") && said.stderr.is_empty(),
        "{}{}",
        said.stdout,
        said.stderr
    );
}

const C: [&str; 2] = ["c_interface.c", "c_sections.c"];
const CPP: &str = "cpp_interface.cpp";
/// The threads of a connection may outlive it for a moment, so valgrind, which compares the memory
/// in use at the end, does not run these.
const POOL_C: &str = "c_pool.c";
/// They move more bytes than valgrind does in a reasonable time.
const FILES_C: &str = "c_files.c";
const FILES_CPP: &str = "cpp_files.cpp";
const LOAD_C: &str = "c_load.c";
const LOAD_CPP: &str = "cpp_load.cpp";
const POOL_CPP: &str = "cpp_pool.cpp";
pub const SANITIZERS: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

#[test]
fn the_header_for_c_compiles_as_c11_and_passes() {
    C.iter().chain([&POOL_C, &FILES_C, &LOAD_C]).for_each(|source| interface("gcc", &["-std=c11"], source));
}

#[test]
fn the_header_for_c_compiles_as_cpp17_and_passes() {
    let sources = C.iter().chain([&POOL_C, &FILES_C, &LOAD_C]);
    sources.for_each(|source| interface("g++", &["-std=c++17", "-x", "c++"], source));
}

#[test]
fn the_header_for_cpp_compiles_as_cpp17_and_cpp20_and_passes() {
    for source in [CPP, POOL_CPP, FILES_CPP, LOAD_CPP] {
        interface("g++", &["-std=c++17", "-O0"], source);
        interface("g++", &["-std=c++20", "-O0"], source);
    }
}

#[test]
fn the_interfaces_pass_with_sanitizers() {
    for source in C.iter().chain([&POOL_C, &FILES_C, &LOAD_C]) {
        interface("gcc", &[&["-std=c11"][..], &SANITIZERS].concat(), source);
        interface("g++", &[&["-std=c++17", "-x", "c++"][..], &SANITIZERS].concat(), source);
    }
    for source in [CPP, POOL_CPP, FILES_CPP, LOAD_CPP] {
        interface("g++", &[&["-std=c++17"][..], &SANITIZERS].concat(), source);
    }
}

#[test]
fn the_interfaces_pass_with_the_static_library() {
    let sources = C.iter().chain([&POOL_C, &FILES_C, &LOAD_C]);
    sources.for_each(|source| interface("gcc", &["-std=c11", "target/lib/libhostbuf.a"], source));
}

/// Builds `source` with the module for Fortran in `folder`, without a warning. Returns `None` if a
/// prerequisite is missing.
pub fn built_fortran(folder: &Scratch, source: &str) -> Option<PathBuf> {
    let library = root().join("target/lib");
    if !library.join("libhostbuf.so").exists() || Command::new("gfortran").arg("--version").output().is_err()
    {
        skip("libhostbuf in Fortran: there is no libhostbuf (scripts/build), or no gfortran");
        return None;
    }
    let program = folder.0.join("fortran");
    let mut command = Command::new("gfortran");
    // Some fill functions do not use their argument. The order of calls does not matter for
    // functions that are not pure.
    command.args([
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-unused-dummy-argument",
        "-Wno-function-elimination",
        "-O1",
        "-g",
        "-fcheck=all",
        "-J",
    ]);
    command.arg(&folder.0).arg("-I").arg(&folder.0).current_dir(root());
    command.arg("bindings/fortran/hostbuf.f90").arg(format!("tests/fixtures/{source}"));
    command.arg("-o").arg(&program);
    command.arg("-L").arg(&library).args(["-lhostbuf", &format!("-Wl,-rpath,{}", library.display())]);
    CommandOutput::of(&mut command).ok();
    Some(program)
}

/// Both languages must agree on the sizes of the types that they exchange.
#[test]
fn the_module_for_fortran_compiles_and_passes() {
    let folder = Scratch::new("fortran");
    let Some(fortran) = built_fortran(&folder, "fortran_interface.f90") else { return };
    let sizes = folder.0.join("sizes");
    let said = CommandOutput::of(&mut Command::new(&fortran)).ok().stdout;
    let source = folder.0.join("sizes.c");
    let types = [
        "options",
        "info",
        "key",
        "lease",
        "collective",
        "cache_stats",
        "section_options",
        "section_info",
        "gpu_section_info",
        "proof",
    ]
    .map(|name| format!("sizeof(hostbuf_{name})"));
    let program = format!(
        "#include <stdio.h>\n#include <hostbuf.h>\nint main(void) {{ printf(\"sizes{}\", {}); }}\n",
        " %zu".repeat(types.len()),
        types.join(", ")
    );
    fs::write(&source, program).expect("the folder is there");
    let include = root().join("include");
    CommandOutput::of(Command::new("gcc").arg("-I").arg(include).arg(&source).arg("-o").arg(&sizes)).ok();
    let wanted = CommandOutput::of(&mut Command::new(&sizes)).ok().stdout;
    assert_eq!(said, format!("{wanted}\nall as it should be\n"));
}

/// The built library has the soname that docs/compatibility.md states.
#[test]
fn the_library_has_the_documented_soname() {
    let library = root().join("target/lib/libhostbuf.so");
    if !library.exists() {
        return skip("the soname of libhostbuf: there is no libhostbuf (scripts/build)");
    }
    let page = fs::read_to_string(root().join("docs/compatibility.md")).expect("the page exists");
    let documented = page
        .split_once("The soname of libhostbuf is `")
        .and_then(|(_, rest)| rest.split_once('`'))
        .expect("the page states it")
        .0;
    let dynamic = CommandOutput::of(Command::new("readelf").arg("-dW").arg(&library)).ok().stdout;
    let wanted = format!("Library soname: [{documented}]");
    assert!(dynamic.contains(&wanted), "{wanted} in {dynamic}");
    assert!(!dynamic.contains("VERDEF"), "the page says that symbols have no versions: {dynamic}");
}

/// Splits a text into its tokens: names, numbers and signs.
fn words(text: &str) -> Vec<&str> {
    let is_sign = |c: char| !(c.is_alphanumeric() || c == '_');
    text.split_inclusive(is_sign)
        .flat_map(|part| {
            let (word, sign) = part.split_at(part.trim_end_matches(is_sign).len());
            [word, sign.trim()]
        })
        .filter(|word| !word.is_empty())
        .collect()
}

/// The constants, the members of each type and the arguments of each function are the same in the
/// module and in the header, in the same order.
#[test]
fn the_module_for_fortran_agrees_with_the_header() {
    let read = |path: &str| fs::read_to_string(root().join(path)).expect("the file exists");
    let header: String = read("include/hostbuf.h")
        .split_once("*/")
        .expect("it begins with a comment")
        .1
        .lines()
        .filter(|l| !l.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join("\n");
    let module: String = read("bindings/fortran/hostbuf.f90")
        .lines()
        .map(|l| l.split('!').next().unwrap_or(""))
        .collect::<Vec<_>>()
        .join("\n");
    let (header, module) = (words(&header), words(&module));
    // Returns the constants `NAME = NUMBER` of the header's enums or the module's parameters. The
    // module has no interface of the pool, of files and of tensors.
    let is_left_out = |name: &str| {
        ["HOSTBUF_POOL_", "HOSTBUF_ELEMENT_", "HOSTBUF_FILE_"].iter().any(|start| name.starts_with(start))
    };
    let constants = |words: &[&str]| -> std::collections::BTreeMap<String, String> {
        words
            .windows(3)
            .filter(|w| w[0].starts_with("HOSTBUF_") && w[1] == "=" && w[2].parse::<u32>().is_ok())
            .filter(|w| !is_left_out(w[0]))
            .map(|w| (w[0].trim_end_matches("_FAILED").to_owned(), w[2].to_owned()))
            .collect()
    };
    let (in_c, in_fortran) = (constants(&header), constants(&module));
    assert!(in_c.len() > 40, "{in_c:?}");
    assert_eq!(in_c, in_fortran);
    // The arguments are the names before each comma and at the end of the list.
    let mut compared = 0;
    for name in module
        .windows(2)
        .filter(|w| matches!(w[0], "function" | "subroutine"))
        .map(|w| w[1].trim_end_matches("_c"))
    {
        let at = |words: &[&str], name: &str| words.windows(2).position(|w| w[0] == name && w[1] == "(");
        let Some(declared) = at(&header, name) else { continue };
        let end = header[declared..].iter().position(|w| *w == ";" || *w == ");").expect("it has an end")
            + declared;
        let wanted: Vec<_> = (declared..=end)
            .filter(|&i| matches!(header[i], "," | ")" | ");") && i > declared + 2)
            .map(|i| header[i - 1])
            .filter(|word| *word != "void")
            .collect();
        let own = format!("{name}_c");
        let here = at(&module, &own).or_else(|| at(&module, name)).expect("the module has it");
        let last = module[here..].iter().position(|w| w.contains(')')).expect("it has an end") + here;
        let given: Vec<_> = module[here + 2..last].iter().copied().filter(|word| *word != ",").collect();
        assert_eq!(given, wanted, "{name}");
        compared += 1;
    }
    assert!(compared > 25, "only {compared} functions were found");
    // The members, except the functions of a group, whose types only the header has in full.
    for name in [
        "hostbuf_options",
        "hostbuf_section_options",
        "hostbuf_info",
        "hostbuf_section_info",
        "hostbuf_gpu_section_info",
        "hostbuf_key",
        "hostbuf_lease",
        "hostbuf_cache_stats",
    ] {
        let start = header
            .windows(3)
            .position(|w| w[0] == "struct" && w[1] == name && w[2].starts_with('{'))
            .expect(name);
        let end = header[start..].iter().position(|w| w.starts_with('}')).expect("it has an end") + start;
        // The name of an array precedes its length in brackets.
        let member = |i: usize| if header[i - 1] == "]" { header[i - 4] } else { header[i - 1] };
        let wanted: Vec<_> = (start..end).filter(|&i| header[i].starts_with(';')).map(member).collect();
        let start = module.windows(2).position(|w| w[0] == ":" && w[1] == name).expect(name) + 2;
        let end =
            module[start..].windows(2).position(|w| w[0] == "end" && w[1] == "type").expect("it has an end")
                + start;
        // The members are the names between commas after each `::` (two signs), without their
        // initial values.
        let mut given = Vec::new();
        let mut i = start;
        while i < end {
            if module[i] == ":" && module[i + 1] != ":" {
                i += 1;
                given.push(module[i]);
                while i + 1 < end && module[i + 1] == "," {
                    i += 2;
                    given.push(module[i]);
                }
            }
            i += 1;
        }
        assert_eq!(given, wanted, "{name}");
    }
}

/// The program leaks nothing and reads no uninitialised memory, and its memory in use at the end
/// does not grow with the work.
#[test]
fn the_interfaces_pass_under_valgrind() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return skip("valgrind: it is not installed (scripts/install-deps sanitizers)");
    }
    C.iter().for_each(|source| valgrind(built("gcc", &["-std=c11"], source)));
    valgrind(built("g++", &["-std=c++17", "-O0"], CPP));
}

fn valgrind(program: Option<Built>) {
    let Some(program) = program else { return };
    // Rust keeps a pointer into the middle of the name of a thread.
    let known = Built(program.0.with_extension("supp"));
    let rust = "{\n rust-thread\n Memcheck:Leak\n match-leak-kinds: possible\n fun:malloc\n ...\n \
                fun:*std*thread*current*init_current*\n}\n";
    fs::write(&known.0, rust).expect("the folder is there");
    let in_use = |rounds: &str| {
        let mut command = Command::new("valgrind");
        command.args([
            "--leak-check=full",
            "--error-exitcode=9",
            "--show-leak-kinds=definite,indirect,possible",
        ]);
        command.arg("--errors-for-leak-kinds=definite,indirect,possible");
        command.arg(format!("--suppressions={}", known.0.display())).arg(&program.0).arg(rounds);
        let said = CommandOutput::of(&mut command).ok().stderr;
        let line =
            said.lines().find(|line| line.contains("in use at exit:")).expect("valgrind sums up").to_owned();
        line.split("in use at exit:").nth(1).expect("it was found").to_owned()
    };
    assert_eq!(in_use("1"), in_use("5"));
}
