//! The Python package: its own tests and the examples in its documentation, with Python's warnings
//! as errors; its type hints; one wheel for all versions; and the example by every installed MPI.

use std::path::{Path, PathBuf};
use std::process::Command;

use hostbuf_tests::fake_cuda::{COPY_MS, LOG, install_fake_cuda};
use hostbuf_tests::{CommandOutput, Scratch, can_simulate, flavours, root, simulated, skip};

use crate::guides::{one_of_each, patch};

/// Returns the interpreter of the environment of scripts/install-deps, for the package that
/// scripts/build-python installed.
pub fn python() -> Option<PathBuf> {
    let python = root().join("target/python/bin/python");
    let there = root().join("target/python-plain/hostbuf").is_dir() && python.exists();
    if !there {
        skip(
            "Python: there is no target/python with the package (scripts/install-deps python, scripts/build-python)",
        );
    }
    there.then_some(python)
}

/// Starts Python in development mode with warnings as errors, outside of the repository's own
/// folders.
pub fn strict(python: &Path) -> Command {
    let mut command = Command::new(python);
    command.args(["-X", "dev", "-W", "error"]).current_dir(root().join("python/tests"));
    command
}

/// Asserts that a command succeeded and printed nothing on standard error.
fn silent(outcome: CommandOutput) -> CommandOutput {
    let outcome = outcome.ok();
    assert_eq!(outcome.stderr, "", "it said something");
    outcome
}

#[test]
fn the_packages_own_tests_pass() {
    let Some(python) = python() else { return };
    // unittest reports on standard error.
    let arguments = ["-m", "unittest", "discover", "--verbose", "--start-directory", "."];
    let said = CommandOutput::of(strict(&python).args(arguments)).ok();
    let skipped: Vec<_> = said.stderr.lines().filter_map(|line| line.split_once(" ... skipped ")).collect();
    for (_, why) in &skipped {
        skip(&format!("Python: {}", why.trim_matches(['\'', '"'])));
    }
    let end = match skipped.len() {
        0 => "\nOK\n".to_owned(),
        count => format!("\nOK (skipped={count})\n"),
    };
    assert!(said.stderr.ends_with(&end) && !said.stderr.contains("Ran 0 tests"), "{}", said.stderr);
}

#[test]
fn the_examples_in_the_documentation_run() {
    let Some(python) = python() else { return };
    let script = "
import doctest, importlib, logging, pkgutil, hostbuf
# In development mode the event loop warns of callbacks that take 0.1 s, as on a busy machine.
logging.getLogger('asyncio').setLevel(logging.ERROR)
names = ['hostbuf', *('hostbuf.' + module.name for module in pkgutil.iter_modules(hostbuf.__path__))]
results = {name: doctest.testmod(importlib.import_module(name)) for name in names}
print(sum(result.failed for result in results.values()), sum(result.attempted for result in results.values()))
# Everything that is public says what it is.
for name in hostbuf.__all__:
    assert getattr(hostbuf, name).__doc__, name
";
    let said = silent(CommandOutput::of(strict(&python).args(["-c", script])));
    let (failed, attempted) = said.stdout.trim().rsplit_once(' ').expect("two numbers");
    assert_eq!(failed, "0", "{}", said.stdout);
    assert!(attempted.parse::<u32>().expect("a number") >= 20, "only {attempted} examples ran");
}

#[test]
fn the_type_hints_are_consistent() {
    let Some(python) = python() else { return };
    let cache = format!("target/fixtures/mypy-{}", std::process::id());
    let mut command = Command::new(python);
    command.current_dir(root()).args(["-m", "mypy", "--strict", "--cache-dir", &cache]);
    let outcome = CommandOutput::of(command.args(["python/package/hostbuf", "examples/python"]));
    std::fs::remove_dir_all(root().join(cache)).expect("it was made");
    outcome.ok();
}

#[test]
fn one_wheel_works_with_all_versions() {
    if python().is_none() {
        return;
    }
    let wheels: Vec<_> = std::fs::read_dir(root().join("target/wheels"))
        .expect("scripts/build-python made it")
        .map(|file| file.expect("it can be read").file_name().into_string().expect("a name"))
        .collect();
    let [wheel] = &wheels[..] else { panic!("one wheel is wanted: {wheels:?}") };
    assert!(wheel.contains("-cp39-abi3-linux_"), "{wheel}");
    // The wheel contains crates of other projects, so their licences come with it.
    for licence in ["LICENSE-MIT", "LICENSE-APACHE", "THIRD-PARTY-LICENSES.txt"] {
        let installed = root()
            .join(concat!("target/python-plain/hostbuf-", env!("CARGO_PKG_VERSION"), ".dist-info/licenses"))
            .join(licence);
        assert!(installed.exists(), "{} is missing", installed.display());
    }
    // The environment has no numpy: the buffer protocol is Python's own.
    let script = "
import sys, hostbuf
with hostbuf.allocate(None, 4096) as buffer:
    memoryview(buffer)[:3] = b'abc'
    assert buffer.initialize(lambda arena: {'a': [1, bytearray(b'xyz')]}) == {'a': [1, bytearray(b'xyz')]}
    assert buffer.freeze(None).sealed and memoryview(buffer).readonly
print(*sys.version_info[:2])
";
    let mut ran = Vec::new();
    for python in pythons() {
        let mut command = strict(&python);
        command.env("PYTHONPATH", root().join("target/python-plain")).env("PYTHONDONTWRITEBYTECODE", "1");
        ran.push(silent(CommandOutput::of(command.args(["-c", script]))).stdout);
    }
    ran.sort();
    ran.dedup();
    if ran.len() < 2 {
        skip(&format!("the wheel under several versions of Python: there is only {}", ran.concat().trim()));
    }
}

/// Lists every CPython from 3.9 on: those in PATH and those of pyenv.
fn pythons() -> Vec<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let versions = std::fs::read_dir(home.join(".pyenv/versions")).into_iter().flatten().flatten();
    let mut all: Vec<_> = versions.map(|version| version.path().join("bin/python")).collect();
    all.extend((9..30).map(|minor| PathBuf::from(format!("python3.{minor}"))));
    all.push("python3".into());
    let fits = "import sys; sys.exit(sys.implementation.name != 'cpython' or sys.version_info < (3, 9))";
    all.retain(|python| Command::new(python).args(["-c", fits]).output().is_ok_and(|o| o.status.success()));
    all
}

/// Runs a script on two simulated hosts by every MPI of `flavours`, and returns its output. The
/// script has `$python`, `$hosts` (mpirun's options), `$run` (hostbuf run) and `$made` (a folder of
/// its own, with `name` in its path).
pub fn by_each(
    name: &str,
    flavours: &[String],
    python: &Path,
    script: &str,
    look: impl Fn(&str, CommandOutput),
) {
    for flavour in flavours {
        // mpi4py looks for the library of MPICH by the name in MPICH's own builds; Debian's has
        // another name.
        let script = format!(
            r#"made=$PWD/target/fixtures/{name}-{number}-$MPI_FLAVOUR; mkdir -p $made; trap 'rm -rf $made' EXIT
               export MPI4PY_MPIABI=openmpi
               if [[ $MPI_ENGINE != openmpi ]]; then
                   export MPI4PY_MPIABI=mpich
                   own=$(dirname $(dirname $(realpath $MPICC)))/lib debian=/usr/lib/$(uname -m)-linux-gnu/libmpich.so.12
                   if [[ ! -e $own/libmpi.so.12 && -e $debian ]]; then
                       own=$made; ln -s $debian $own/libmpi.so.12
                   fi
                   export LD_LIBRARY_PATH=$own
               fi
               python="{python} -X dev -W error"
               hosts="-np 4 --host h0:2,h1:2 -x MPI4PY_MPIABI"; [[ $MPI_ENGINE == openmpi ]] || hosts="-n 4 -hosts h0,h1 -ppn 2"
               run="env ${{MPI_SHIM:+LD_PRELOAD=$MPI_SHIM}} $HOSTBUF run --quiet -n 4 --mpirun $MPIRUN --host h0:2,h1:2 --size 64M --"
               {script}"#,
            number = std::process::id(),
            python = python.display(),
        );
        let said = simulated(2, flavour, &script).ok();
        // Warnings end the program as errors, except those during Python's shutdown.
        for late in ["ResourceWarning", "Exception ignored", "Fatal Python error"] {
            assert!(!said.stderr.contains(late), "{flavour}: {}", said.stderr);
        }
        look(flavour, said);
    }
}

#[test]
fn the_example_shares_a_table_among_all_ranks() {
    let Some(python) = python() else { return };
    if !can_simulate() {
        return;
    }
    let script = "$run $python examples/python/shared_table.py || exit
                  $MPIRUN $MPIRUN_FLAGS $hosts $python examples/python/shared_table.py";
    by_each("table", &flavours(), &python, script, |flavour, said| {
        let wanted = "(60, 2000) values in barn, in 4 ranks at 1 address; 0 are wrong; sealed\n";
        assert_eq!(said.stdout, wanted.repeat(2), "{flavour}");
    });
}

#[test]
fn files_of_tensors_are_loaded_once_per_host() {
    let Some(python) = python() else { return };
    if !can_simulate() {
        return;
    }
    let driver = Scratch::new("python-tensors");
    install_fake_cuda(&driver);
    // A copy of 5 ms has not ended when the next one is requested.
    let script = format!(
        "path={0}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}
         gpu=\"LD_LIBRARY_PATH=$path {COPY_MS}=5 {LOG}={0}/log.$MPI_FLAVOUR PYTHONPATH=$PWD/tests/fixtures/fake_torch\"
         $MPIRUN $MPIRUN_FLAGS $hosts env $gpu $python tests/fixtures/load_tensors.py $made || exit
         cat {0}/log.$MPI_FLAVOUR",
        driver.0.display()
    );
    by_each("tensors", &one_of_each(), &python, &script, |flavour, said| {
        let wanted = "3 tensors in 4 ranks at 1 address; 0 are wrong; 12 on GPUs, 0 are wrong; sealed; without files: Io\n";
        // Each rank has registered the buffer.
        assert_eq!(said.stdout, [wanted, &"registered\n".repeat(4)].concat(), "{flavour}");
    });
}

/// With the lines in docs/python.md that select an MPI library for mpi4py, a job of each MPI has
/// all its ranks in one world.
#[test]
fn the_documented_lines_select_the_mpi_library_for_mpi4py() {
    let Some(python) = python() else { return };
    let page = std::fs::read_to_string(root().join("docs/python.md")).expect("the page is there");
    let (_, section) =
        page.split_once("### Select the MPI library for mpi4py").expect("the section is there");
    let block = section.split("```").nth(1).expect("a block of lines");
    let lines_for = |flavour: &str| -> String {
        let title = match flavour {
            "openmpi4" => "Debian's Open MPI",
            "mpich4" => "Debian's MPICH",
            "openmpi5" => "Open MPI 4 or 5 in a prefix",
            _ => "MPICH 4 or 5, or Intel MPI, in a prefix",
        };
        let of_it = block.split("# ").find(|part| part.starts_with(title));
        let (_, lines) =
            of_it.unwrap_or_else(|| panic!("no lines for {title}")).split_once('\n').expect("lines");
        lines.to_owned()
    };
    for flavour in flavours() {
        let home = root().join(format!("target/tmp/mpi4py-{flavour}-{}", std::process::id()));
        std::fs::create_dir_all(&home).expect("target/ is writable");
        let script = format!(
            r#"eval "$(scripts/mpienv {flavour})"; unset LD_LIBRARY_PATH; PREFIX=$(dirname "$(dirname "$MPIRUN")")
               {}
               "$MPIRUN" $MPIRUN_FLAGS -n 2 {} -c "
from mpi4py import MPI
names = MPI.COMM_WORLD.gather(MPI.Get_library_version().split(' ')[0])
if names: print(MPI.COMM_WORLD.size, *names)
""#,
            lines_for(&flavour),
            python.display()
        );
        let mut command = Command::new("bash");
        command.args(["-c", &script]).current_dir(root()).env("HOME", &home);
        let said = CommandOutput::of(command.env_remove("MPI4PY_MPIABI").env_remove("MPI4PY_LIBMPI"));
        std::fs::remove_dir_all(&home).expect("it was made");
        let name = match flavour.trim_end_matches(|c: char| c.is_ascii_digit()) {
            "openmpi" => "Open",
            "intelmpi" => "Intel(R)",
            _ => "MPICH",
        };
        assert_eq!(said.ok().stdout, format!("2 {name} {name}\n"), "{flavour}");
    }
}

/// The patch in docs/python.md changes nothing of what the program prints.
#[test]
fn the_patch_of_the_page_for_python_applies_and_runs() {
    let Some(python) = python() else { return };
    if !can_simulate() {
        return;
    }
    let patch = patch("python.md");
    let script = format!(
        "mkdir -p $made/examples/guide
         cp examples/guide/spectrum.py $made/examples/guide/
         patch -s -d $made -p1 --fuzz=0 <<'PATCH' || exit 91
{patch}PATCH
         $MPIRUN $MPIRUN_FLAGS $hosts $python examples/guide/spectrum.py || exit
         $run $python $made/examples/guide/spectrum.py || exit
         $MPIRUN $MPIRUN_FLAGS $hosts $python $made/examples/guide/spectrum.py"
    );
    by_each("page", &one_of_each(), &python, &script, |flavour, said| {
        let wanted = "500 lines, sum 199400000, in 4 ranks\n";
        assert_eq!(said.stdout, wanted.repeat(3), "{flavour}");
        let page = std::fs::read_to_string(root().join("docs/python.md")).expect("the page is there");
        assert!(page.contains(wanted.trim()));
    });
}
