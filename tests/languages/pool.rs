//! Blocks of a pool between programs in C, C++ and Python: the programs in docs/c.md, docs/cpp.md
//! and docs/python.md, with their tokens in a pipe.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use hostbuf_tests::{CommandOutput, Scratch, program, root, skip};

use crate::python::{python, strict};

/// A broker, which ends with this.
pub struct PoolBroker {
    pub name: String,
    process: Child,
}

impl PoolBroker {
    pub fn start(test: &str) -> PoolBroker {
        let name = format!("hostbuf-pool-{test}-{}", std::process::id());
        let mut command = Command::new(program("pool_broker"));
        command.arg(&name).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("it starts");
        let mut line = [0; 10];
        process.stdout.as_mut().expect("a pipe").read_exact(&mut line).expect("it listens");
        assert_eq!(&line, b"listening\n");
        PoolBroker { name, process }
    }
}

impl Drop for PoolBroker {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let status = self.process.wait().expect("it ends");
        assert!(status.success() || std::thread::panicking(), "the broker: {status}");
    }
}

/// Writes the program of a page whose first line contains its file name, and returns its path.
fn documented(page: &str, name: &str, folder: &Path) -> PathBuf {
    let text = fs::read_to_string(root().join("docs").join(page)).expect("the page is there");
    let has_name = |code: &&str| code.lines().nth(1).is_some_and(|line| line.contains(name));
    let code = text.split("```").find(has_name).expect("the page has the program");
    let (_, code) = code.split_once('\n').expect("it has lines");
    let path = folder.join(name);
    fs::write(&path, code).expect("the folder is there");
    path
}

/// Builds a documented program, and returns its path.
fn built(compiler: &str, standard: &str, page: &str, name: &str, folder: &Path) -> PathBuf {
    let source = documented(page, name, folder);
    let (made, library) = (source.with_extension(format!("{compiler}.out")), root().join("target/lib"));
    let mut command = Command::new(compiler);
    command.current_dir(root()).args([standard, "-Wall", "-Wextra", "-pedantic", "-Werror", "-g", "-O1"]);
    command.arg("-Iinclude").arg(&source).arg("-o").arg(&made).arg("-L").arg(&library);
    command.args(["-lhostbuf", &format!("-Wl,-rpath,{}", library.display())]);
    CommandOutput::of(&mut command).ok();
    made
}

#[test]
fn the_documented_programs_pass_frames_to_each_other() {
    if !root().join("target/lib/libhostbuf.so").exists() {
        return skip("a pool between languages: there is no libhostbuf (scripts/build)");
    }
    let Some(python) = python() else { return };
    let folder = Scratch::new("pool-languages");
    let programs = |name: &str| -> [(PathBuf, Option<PathBuf>); 3] {
        let c = built("gcc", "-std=c11", "c.md", &format!("{name}.c"), &folder.0);
        let cpp = built("g++", "-std=c++17", "cpp.md", &format!("{name}.cpp"), &folder.0);
        let script = documented("python.md", &format!("{name}.py"), &folder.0);
        [(c, None), (cpp, None), (python.clone(), Some(script))]
    };
    let broker = PoolBroker::start("languages");
    let command = |(program, script): &(PathBuf, Option<PathBuf>)| {
        let mut command = match script {
            Some(_) => strict(program),
            None => Command::new(program),
        };
        command.args(script).env("HOSTBUF_POOL", format!("@{}", broker.name));
        command
    };
    let wanted: Vec<String> = (0..20).map(|frame| format!("frame {frame}: 480 x 640, {frame}")).collect();
    let (cameras, viewers) = (programs("camera"), programs("viewer"));
    for camera in &cameras {
        for viewer in &viewers {
            let mut producer = command(camera).stdout(Stdio::piped()).spawn().expect("it starts");
            let tokens = producer.stdout.take().expect("a pipe");
            let reader = command(viewer).stdin(tokens).output().expect("it starts");
            let said = String::from_utf8_lossy(&reader.stdout);
            let pair = format!("{camera:?} to {viewer:?}");
            assert!(reader.status.success(), "{pair}: {said}{}", String::from_utf8_lossy(&reader.stderr));
            assert_eq!(said.lines().collect::<Vec<_>>(), wanted, "{pair}");
            assert!(producer.wait().expect("it ends").success(), "{pair}");
        }
    }
}
