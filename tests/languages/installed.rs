//! An installation by scripts/install: programs build with it, its manual and completions work, and
//! it can be removed. Also the command installed alone.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use hostbuf_tests::{CommandOutput, Scratch, can_simulate, flavours, hostbuf, simulated};

use crate::installation::{Installation, has};

/// A script that builds tests/fixtures/installed.c by pkg-config, and runs the program.
const BY_PKG_CONFIG: &str = r#"
    cc -std=c11 -Wall -Wextra -Werror $ROOT/tests/fixtures/installed.c -o dynamic $(pkg-config --cflags --libs hostbuf) \
        -Wl,-rpath,$(pkg-config --variable=libdir hostbuf)
    ./dynamic
    "$(pkg-config --variable=prefix hostbuf)/bin/hostbuf" run --launcher local -n 2 --size 4M -- ./dynamic
    # The C library warns of what it opens at run time.
    cc -std=c11 -static $ROOT/tests/fixtures/installed.c -o static $(pkg-config --cflags --libs --static hostbuf) 2>said ||
        { cat said; exit 1; }
    ./static
    ls "$(pkg-config --variable=fortrandir hostbuf)"
"#;
const THEY_SAY: &str = "its own: 1048576 bytes\nthe launcher's: 4194304 bytes\nthe launcher's: 4194304 bytes\n\
    its own: 1048576 bytes\nhostbuf.f90\nhostbuf_mpi.f90\n";

#[test]
fn pkg_config_builds_programs_also_after_the_prefix_moved() {
    let Some(scratch) = Installation::installed("pkg-config") else { return };
    if !has("pkg-config", "building with an installation") {
        return;
    }
    assert_eq!(scratch.run(BY_PKG_CONFIG).ok().stdout, THEY_SAY);
    fs::rename(scratch.folder().join("prefix"), scratch.folder().join("moved")).expect("the file exists");
    let moved = format!("export PKG_CONFIG_PATH=$PWD/moved/lib/pkgconfig\n{BY_PKG_CONFIG}");
    assert_eq!(scratch.run(&moved).ok().stdout, THEY_SAY);
}

const CMAKE: &str = "cmake_minimum_required(VERSION 3.13)
project(installed C)
find_package(hostbuf 0.1 REQUIRED)
foreach(kind hostbuf hostbuf_static)
    add_executable(${kind} ${SOURCE})
    target_link_libraries(${kind} hostbuf::${kind})
endforeach()
if(NOT EXISTS ${hostbuf_FORTRAN_DIR}/hostbuf.f90)
    message(FATAL_ERROR \"no sources for Fortran: ${hostbuf_FORTRAN_DIR}\")
endif()
";

#[test]
fn a_cmake_project_finds_both_libraries() {
    let Some(scratch) = Installation::installed("cmake") else { return };
    if !has("cmake", "an installation for CMake") {
        return;
    }
    fs::write(scratch.folder().join("CMakeLists.txt"), CMAKE).expect("the folder is writable");
    let build = |prefix: &str| {
        scratch.run(&format!(
            "rm -rf built; source=$ROOT/tests/fixtures/installed.c
             cmake -S . -B built -DCMAKE_PREFIX_PATH=$PWD/{prefix} -DSOURCE=$source >said 2>&1 &&
             cmake --build built >>said 2>&1 || {{ cat said; exit 1; }}
             built/hostbuf; built/hostbuf_static"
        ))
    };
    let said = "its own: 1048576 bytes\nits own: 1048576 bytes\n";
    assert_eq!(build("prefix").ok().stdout, said);
    fs::rename(scratch.folder().join("prefix"), scratch.folder().join("moved")).expect("the file exists");
    assert_eq!(build("moved").ok().stdout, said);
    // /lib is a link to /usr/lib on many machines, and CMake may search through the link.
    fs::create_dir(scratch.folder().join("linked")).expect("it is new");
    symlink("../moved/lib", scratch.folder().join("linked/lib")).expect("it is new");
    assert_eq!(build("linked").ok().stdout, said);
    let newer = CMAKE.replace("hostbuf 0.1", "hostbuf 0.2");
    fs::write(scratch.folder().join("CMakeLists.txt"), newer).expect("the folder is writable");
    let outcome = build("moved");
    assert!(outcome.status != 0 && outcome.stdout.contains("0.2"), "{outcome:?}");
}

#[test]
fn a_job_runs_from_the_installation() {
    let Some(scratch) = Installation::installed("job") else { return };
    let register = "$PREFIX/bin/hostbuf run --launcher local -n 2 --size 4M --register mlock -- \
                    grep -o \"$PREFIX/lib/.*so\" /proc/self/maps";
    let said = scratch.run(register).ok().stdout;
    for object in ["libhostbuf_preload.so", "libhostbuf_register.so"] {
        assert!(
            said.contains(&format!("{}/prefix/lib/hostbuf/{object}\n", scratch.folder().display())),
            "{said}"
        );
    }
    if !can_simulate() {
        return;
    }
    for flavour in flavours() {
        let script = format!(
            "{}/prefix/bin/hostbuf run -n 2 --mpirun $MPIRUN --host h0:1,h1:1 --size 4M -- sh -c 'echo $HOSTBUF_SIZE'",
            scratch.folder().display()
        );
        let said = simulated(2, &flavour, &script).ok().stdout;
        assert_eq!(said, "4194304\n4194304\n", "{flavour}");
    }
}

#[test]
fn man_renders_the_manual_without_a_warning() {
    let Some(scratch) = Installation::installed("manual") else { return };
    if !has("man", "the manual") {
        return;
    }
    let script =
        "for page in hostbuf hostbuf-run hostbuf-exec hostbuf-stat hostbuf-doctor hostbuf-topology; do
                      man -M $PREFIX/share/man -w 1 $page
                      man --warnings -l $PREFIX/share/man/man1/$page.1 | grep -A 1 NAME
                  done
                  man --warnings -l $PREFIX/share/man/man3/hostbuf.3 | grep -c hostbuf_cache_get";
    let outcome = scratch.run(script).ok();
    assert_eq!(outcome.stderr, "");
    assert!(outcome.stdout.contains("hostbuf-run - Start a program's ranks"), "{}", outcome.stdout);
    let run = scratch.run("MANWIDTH=80 man -l $PREFIX/share/man/man1/hostbuf-run.1").ok().stdout;
    let wanted =
        ["--hostfile FILE", "EXIT STATUS", "ENVIRONMENT", "FILES", "EXAMPLES", "mpich  Use mpiexec of MPICH"];
    for wanted in wanted {
        assert!(run.contains(wanted), "{wanted}:\n{run}");
    }
    if has("mandoc", "the manual by mandoc") {
        let outcome = scratch.run("mandoc -T lint -W style $PREFIX/share/man/man?/*").ok();
        assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("", ""));
    }
}

#[test]
fn shells_complete_commands_and_options() {
    let Some(scratch) = Installation::installed("completions") else { return };
    let bash = ". $PREFIX/share/bash-completion/completions/hostbuf
                complete -p hostbuf
                try() {
                    COMP_WORDS=(\"$@\") COMP_CWORD=$(($# - 1))
                    _hostbuf hostbuf \"${*: -1}\" \"${*: -2:1}\"
                    echo \"${COMPREPLY[@]}\"
                }
                try hostbuf ru
                try hostbuf run --hostf
                try hostbuf run --launcher mp
                try hostbuf exec --soc
                try hostbuf ''";
    // The shell's own completion function uses unset variables.
    let said = scratch.run(&format!("set +eu\n{bash}")).ok().stdout;
    let said: Vec<&str> = said.lines().collect();
    assert!(said[0].contains("-F _hostbuf"), "{said:?}");
    assert_eq!(said[1..5], ["run", "--hostfile", "mpich", ""], "hidden options are not offered");
    assert!(!said[5].contains("object") && said[5].contains("doctor"), "{said:?}");
    for (shell, file) in
        [("zsh", "zsh/site-functions/_hostbuf"), ("fish", "fish/vendor_completions.d/hostbuf.fish")]
    {
        if has(shell, "completions") {
            let outcome = scratch.run(&format!("{shell} -n $PREFIX/share/{file}")).ok();
            assert_eq!(outcome.stderr, "");
        }
    }
}

#[test]
fn uninstall_removes_exactly_the_installed_files() {
    let Some(scratch) = Installation::installed("manifest") else { return };
    let manifest = scratch.run("cat prefix/share/hostbuf/manifest").ok().stdout;
    assert_eq!(format!("./\n{}", scratch.contents()), manifest, "the prefix is new, too");
    assert!(manifest.contains("bin/hostbuf\n") && manifest.contains("libexec/hostbuf/\n"), "{manifest}");

    // A file that a process has open keeps its contents, and files that are no longer installed are
    // removed.
    let library = scratch.folder().join("prefix/lib/libhostbuf.so.0");
    let open = fs::File::open(&library).expect("it is installed");
    let mode =
        fs::metadata(scratch.folder().join("prefix/bin/hostbuf")).expect("it is installed").permissions();
    assert_eq!(mode.mode() & 0o7777, 0o755);
    scratch.run("umask 077; $ROOT/scripts/install --no-build --prefix prefix --libdir lib64").ok();
    assert!(!library.exists(), "of the first installation nothing is left that the second has not");
    assert!(!scratch.folder().join("prefix/lib/pkgconfig").exists());
    let second = scratch.run("cat prefix/share/hostbuf/manifest").ok().stdout;
    assert_eq!(format!("./\n{}", scratch.contents()), second);
    scratch.run("$ROOT/scripts/install --no-build --prefix prefix").ok();
    assert_eq!(format!("./\n{}", scratch.contents()), manifest);
    let again = fs::File::open(&library).expect("it is installed");
    let inode = |file: &fs::File| file.metadata().expect("it is open").ino();
    assert_ne!(inode(&open), inode(&again));
    assert_eq!(open.metadata().expect("it is open").len(), again.metadata().expect("it is open").len());

    // Named agents are added to the existing ones.
    let agents = "ls prefix/libexec/hostbuf | grep agent";
    let all = flavours();
    let (first, last) = (all.first().cloned().unwrap_or_default(), all.last().cloned().unwrap_or_default());
    let install = "$ROOT/scripts/install --no-build --prefix prefix";
    scratch
        .run(&format!(
            "$ROOT/scripts/install --prefix prefix --uninstall; {install} {first}; {install} {last}"
        ))
        .ok();
    let named = all.first().into_iter().chain(all.last()).map(|flavour| hostbuf_tests::agent_of(flavour));
    let named = named.map(|agent| agent.file_name().expect("a file").to_string_lossy().into_owned());
    let mut wanted: Vec<String> = named.chain(["hostbuf-agent-mpi-abi".to_owned()]).collect();
    wanted.sort();
    wanted.dedup();
    assert_eq!(scratch.run(agents).ok().lines(""), wanted);

    fs::write(scratch.folder().join("prefix/share/man/man1/other.1"), "another's").expect("it is writable");
    scratch.run("$ROOT/scripts/install --prefix prefix --uninstall").ok();
    assert_eq!(scratch.contents(), "share/\nshare/man/\nshare/man/man1/\nshare/man/man1/other.1\n");

    // Folders that existed before remain, also the prefix. A failed installation leaves no prefix.
    let kept = "install() { $ROOT/scripts/install --prefix $1 ${2:---no-build} >said; }
        install new; install new; install new --uninstall
        mkdir kept; install kept; install kept --uninstall
        ! PATH=$PWD/without:$PATH install failed 2>said
        find new kept failed 2>/dev/null || true";
    fs::create_dir(scratch.folder().join("without")).expect("it is new");
    let strip = scratch.folder().join("without/strip");
    symlink("/bin/false", strip).expect("it is new");
    assert_eq!(scratch.run(kept).ok().stdout, "kept\n");
    let into =
        "mkdir -p stage/usr/bin && $ROOT/scripts/install --no-build --prefix /usr --destdir stage >said &&
                $ROOT/scripts/install --prefix=/usr --destdir=stage --uninstall >said && find stage";
    assert_eq!(scratch.run(into).ok().stdout, "stage\nstage/usr\nstage/usr/bin\n");
}

#[test]
fn invalid_calls_are_refused() {
    let scratch = Installation(Scratch::new("calls"));
    for (call, status, words) in [
        ("install", 2, "--prefix is missing"),
        ("install --prefix", 2, "--prefix requires a folder"),
        ("install --prefix prefix --force", 2, "unexpected argument '--force'"),
        ("install --prefix 'a b'", 2, "a space or a colon"),
        ("install --prefix prefix openmpi9", 2, "unknown MPI \"openmpi9\": expected one of openmpi4"),
        ("install --prefix prefix --destdir stage", 2, "begins with a /"),
        ("install --prefix prefix --libdir ../lib", 2, "--libdir is a folder below the prefix"),
        ("install --prefix prefix --uninstall", 1, "nothing is installed"),
        ("install --prefix /proc/nowhere --no-build", 1, "/proc/nowhere"),
        ("build --fast", 2, "unexpected argument '--fast'"),
        ("build openmpi9", 2, "unknown MPI \"openmpi9\""),
        ("build openmpi9=/usr", 2, "unknown agent \"openmpi9\": expected one of openmpi4"),
        ("build openmpi5=opt", 2, "in openmpi5=opt, the folder of the MPI begins with a /"),
        ("build mpi-abi=/usr", 2, "the agent mpi-abi is built without an MPI"),
        ("install --prefix prefix openmpi5=/nowhere", 2, "there is no compiler /nowhere/bin/mpicc"),
        ("install --prefix prefix --no-build openmpi5=/opt", 2, "write openmpi5 instead of openmpi5=/opt"),
        ("package --fast", 2, "unexpected argument '--fast'"),
        ("build-wheel --fast", 2, "unexpected argument '--fast'"),
        ("bench --fast", 2, "unexpected argument '--fast'"),
        ("test-gpu --fast", 2, "unexpected argument '--fast'"),
        ("check grammar", 2, "no check \"grammar\""),
        ("install-deps nothing", 2, "no group \"nothing\""),
        ("test --fast", 2, "cargo nextest: unexpected argument '--fast' found"),
        ("test cache:: --fast=1 -- --skip loom", 2, "unexpected argument '--fast' found"),
        ("test -E", 2, "a value is required for '--filterset <EXPR>'"),
        ("test-long nothing", 2, "no part \"nothing\""),
        ("third-party --fast", 2, "unexpected argument '--fast'"),
        ("check-exhaustive --fast", 2, "unexpected argument '--fast'"),
        ("check-public --fast", 2, "unexpected argument '--fast'"),
    ] {
        let outcome = scratch.run(&format!("$ROOT/scripts/{call}"));
        let lines = outcome.stderr.lines().count();
        assert_eq!((outcome.status, lines), (status, 1), "{call}: {outcome:?}");
        assert!(outcome.stderr.contains(words), "{call}: {outcome:?}");
    }
    for script in ["install", "build", "package"] {
        let help = scratch.run(&format!("$ROOT/scripts/{script} --help")).ok().stdout;
        assert!(help.contains(&format!("scripts/{script} ")) && !help.contains("#!"), "{help}");
    }
    // Entries of a manifest outside of the installation are ignored.
    let script = "mkdir -p prefix/share/hostbuf; touch stays; echo ../stays >prefix/share/hostbuf/manifest
                  $ROOT/scripts/install --prefix prefix --uninstall";
    let outcome = scratch.run(script);
    assert_eq!((outcome.status, outcome.stderr.lines().count()), (1, 1), "{outcome:?}");
    assert!(scratch.folder().join("stays").exists());
}

/// Returns the number of lines on standard error, without those about progress, which appear on
/// slow machines.
fn said(outcome: &CommandOutput) -> usize {
    outcome.stderr.lines().filter(|line| !line.starts_with("hostbuf: allocating memory")).count()
}

#[test]
fn a_command_installed_alone_names_the_source_of_an_agent() {
    // cargo install installs only the command.
    let scratch = Installation(Scratch::new("alone"));
    fs::create_dir(scratch.folder().join("bin")).expect("it is new");
    fs::hard_link(hostbuf(), scratch.folder().join("bin/hostbuf")).expect("one file system");
    scratch.run("bin/hostbuf run --launcher local -n 2 --size 4M -- /bin/true").ok();
    // LD_PRELOAD cannot contain this path, so the object is loaded from the cache.
    let spaced = "mkdir -p 'a b/lib/hostbuf' && cp -r bin 'a b/' && 'a b/bin/hostbuf' object 'a b/lib/hostbuf/libhostbuf_preload.so'
                  export XDG_CACHE_HOME=$PWD/cache
                  'a b/bin/hostbuf' run --launcher local -n 2 --size 4M -- /bin/true && ls cache/hostbuf | wc -l
                  'a b/bin/hostbuf' run --launcher local -n 2 --size 4M --register mlock -- /bin/true";
    let outcome = scratch.run(spaced);
    assert_eq!((outcome.status, outcome.stdout.as_str(), said(&outcome)), (82, "1\n", 1), "{outcome:?}");
    assert!(outcome.stderr.contains("a space or a colon"), "{}", outcome.stderr);
    let mpirun = "printf '#!/bin/sh\\necho \"mpirun (Open MPI) 4.1.4\"\\n' >mpirun; chmod +x mpirun
                  bin/hostbuf run --mpirun ./mpirun -n 2 --size 4M -- /bin/true";
    let outcome = scratch.run(mpirun);
    assert_eq!((outcome.status, said(&outcome)), (82, 1), "{outcome:?}");
    let mend = format!("scripts/install --prefix {} openmpi4`", scratch.folder().display());
    assert!(outcome.stderr.contains(&mend) && outcome.stderr.contains("--agent"), "{}", outcome.stderr);
    // The remedy names the MPI's folder.
    let site = "mkdir -p opt/bin opt/lib; mv mpirun opt/bin; touch opt/lib/libmpi.so.40
                bin/hostbuf run --mpirun opt/bin/mpirun -n 2 --size 4M -- /bin/true";
    let outcome = scratch.run(site);
    assert_eq!((outcome.status, said(&outcome)), (82, 1), "{outcome:?}");
    let folder = scratch.folder().display();
    let mend = format!("scripts/install --prefix {folder} openmpi4={folder}/opt`");
    assert!(outcome.stderr.contains(&mend) && outcome.stderr.contains("hostbuf exec"), "{}", outcome.stderr);
    // The agent of the system's MPICH may need other libraries than this one has.
    let site = "printf '#!/bin/sh\\necho \"HYDRA build details:\\n    Version: 4.2.1\"\\n' >opt/bin/mpiexec
                chmod +x opt/bin/mpiexec; rm opt/lib/*; touch opt/lib/libmpi.so.12
                bin/hostbuf run --mpirun opt/bin/mpiexec -n 2 --size 4M -- /bin/true";
    let outcome = scratch.run(site);
    assert_eq!((outcome.status, said(&outcome)), (82, 1), "{outcome:?}");
    let mend = format!("scripts/install --prefix {folder} mpich-abi={folder}/opt`");
    assert!(outcome.stderr.contains(&mend), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("hostbuf-agent-mpich-abi or hostbuf-agent-mpich4"), "{}", outcome.stderr);
}
