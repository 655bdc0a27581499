//! An installation by scripts/install in a scratch folder, for the tests of what it contains.

use std::path::Path;
use std::process::Command;

use hostbuf_tests::{CommandOutput, Scratch, root, skip};

/// An installation in a scratch folder.
pub(crate) struct Installation(pub(crate) Scratch);

impl Installation {
    /// Installs hostbuf below `prefix` in a scratch folder. Records a skip and returns `None` if it
    /// is not built.
    pub(crate) fn installed(name: &str) -> Option<Installation> {
        for built in ["target/release/hostbuf", "target/lib/libhostbuf.so", "target/lib/libhostbuf.a"] {
            if !root().join(built).exists() {
                skip(&format!("{name}: there is no {built} (scripts/build)"));
                return None;
            }
        }
        let scratch = Installation(Scratch::new(name));
        scratch.run("$ROOT/scripts/install --no-build --prefix prefix").ok();
        Some(scratch)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.0.0
    }

    /// Runs a shell script in this folder, with `$ROOT` and `$PREFIX` set.
    pub(crate) fn run(&self, script: &str) -> CommandOutput {
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", script]).current_dir(self.folder());
        command
            .env("ROOT", root())
            .env("PREFIX", self.folder().join("prefix"))
            .env_remove("MANPATH")
            .env("LC_ALL", "C");
        CommandOutput::of(command.env("PKG_CONFIG_PATH", self.folder().join("prefix/lib/pkgconfig")))
    }

    /// Lists every file and folder below `prefix`, in the format of the manifest.
    pub(crate) fn contents(&self) -> String {
        let list = r"cd prefix && find . -mindepth 1 \( -type d -printf '%P/\n' -o -printf '%P\n' \) | LC_ALL=C sort";
        self.run(list).ok().stdout
    }
}

/// Returns true if `program` is found, and records a skip if not.
pub(crate) fn has(program: &str, what: &str) -> bool {
    let there = Command::new("which").arg(program).output().is_ok_and(|o| o.status.success());
    if !there {
        skip(&format!("{what}: there is no {program}"));
    }
    there
}
