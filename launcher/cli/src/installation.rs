//! What a build of the command alone does not bring (`cargo install`): agents, and the objects that register.

use std::path::Path;

/// The command, in hostbuf's sources, that puts in place what is missing; `flavour`: the MPI whose agent that is, or "".
pub(crate) fn mend(flavour: &str) -> String {
    mend_for(&std::env::current_exe().unwrap_or_default(), flavour)
}

fn mend_for(executable: &Path, flavour: &str) -> String {
    let folder = executable.parent().filter(|bin| bin.ends_with("bin"));
    let command = match folder.and_then(Path::parent) {
        // That is for the system's packages.
        Some(prefix) if prefix == Path::new("/usr") => "scripts/install --prefix /usr/local".into(),
        Some(prefix) => format!("scripts/install --prefix {}", prefix.display()),
        None => "scripts/build".to_owned(),
    };
    format!("{command} {flavour}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installation_is_mended_where_it_is() {
        for (executable, flavour, mend) in [
            ("/home/u/.cargo/bin/hostbuf", "openmpi4", "scripts/install --prefix /home/u/.cargo openmpi4"),
            ("/usr/bin/hostbuf", "", "scripts/install --prefix /usr/local"),
            ("/src/target/release/hostbuf", "mpich4", "scripts/build mpich4"),
        ] {
            assert_eq!(mend_for(Path::new(executable), flavour), mend);
        }
    }
}
