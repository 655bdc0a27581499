//! The modulefile of an installation, by Environment Modules or Lmod.

use std::fs;
use std::path::Path;

use hostbuf_tests::skip;

use crate::installation::Installation;

/// Files that define the command `module` in bash: of Environment Modules and of Lmod, as Debian
/// has them.
const DEFINITIONS: [&str; 2] = ["/usr/share/modules/init/bash", "/usr/share/lmod/lmod/init/bash"];

/// A script that loads the module, uses the command, its manual and the library, and unloads it.
const USE: &str = r#"
    unset MANPATH PKG_CONFIG_PATH HOSTBUF_ROOT
    module use $MODULES
    module load hostbuf
    echo ${root:=$HOSTBUF_ROOT}
    hostbuf --version
    ! type man >/dev/null 2>&1 || [[ $(man -w hostbuf-run) == $HOSTBUF_ROOT/* ]] || echo "no manual"
    [[ $MANPATH == $HOSTBUF_ROOT/share/man:* ]] || echo "no other manual: $MANPATH"
    cc $ROOT/tests/fixtures/installed.c -o program -lhostbuf
    ./program
    hostbuf run --launcher local -n 2 --size 4M -- ./program
    ! type pkg-config >/dev/null 2>&1 || [[ $(pkg-config --variable=pcfiledir hostbuf) == $HOSTBUF_ROOT/* ]] || echo "no package"
    [[ $CMAKE_PREFIX_PATH == $HOSTBUF_ROOT ]] || echo "nothing for CMake"
    module unload hostbuf
    [[ :$PATH: != *:$root/bin:* && -z ${HOSTBUF_ROOT:-}${LD_LIBRARY_PATH:-} ]] || echo "not unloaded"
"#;

#[test]
fn a_module_gives_programs_the_command_and_the_library() {
    let Some(scratch) = Installation::installed("module") else { return };
    let Some(definition) = DEFINITIONS.into_iter().find(|file| Path::new(file).exists()) else {
        return skip("the modulefile: the command module is missing (scripts/install-deps languages)");
    };
    // The definition uses unset variables.
    let load = |modules: &str| {
        let script = format!("set +eu; unset LD_LIBRARY_PATH; MODULES={modules}; . {definition}; {USE}");
        scratch.run(&script).ok().stdout
    };
    let said = |root: &str| {
        format!(
            "{}\nhostbuf {}\nits own: 1048576 bytes\n{}",
            scratch.folder().join(root).display(),
            env!("CARGO_PKG_VERSION"),
            "the launcher's: 4194304 bytes\n".repeat(2)
        )
    };
    assert_eq!(load("$PREFIX/share/modulefiles"), said("prefix"));
    // The prefix follows from the place of the modulefile, whatever link leads there.
    fs::rename(scratch.folder().join("prefix"), scratch.folder().join("moved")).expect("the file exists");
    scratch
        .run("mkdir -p site/hostbuf; cd site/hostbuf; ln -s ../../moved/share/modulefiles/hostbuf/* .")
        .ok();
    assert_eq!(load("$PWD/site"), said("moved"));
    // The folder of libraries may have another name.
    scratch.run("$ROOT/scripts/install --no-build --prefix prefix --libdir lib64").ok();
    assert_eq!(load("$PREFIX/share/modulefiles"), said("prefix"));
}
