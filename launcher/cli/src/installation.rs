//! The remedy for files that `cargo install` does not install: agents and the objects for
//! `--register`.

use std::path::Path;

/// Returns the command that installs missing files from hostbuf's sources. `flavour` names the MPI
/// of a missing agent, or is empty.
pub(crate) fn mend(flavour: &str) -> String {
    mend_for(&std::env::current_exe().unwrap_or_default(), flavour)
}

/// Returns the package with the agents for Debian's MPIs, if this command comes from a package.
pub(crate) fn agents_package() -> Option<&'static str> {
    agents_package_for(&std::env::current_exe().unwrap_or_default())
}

fn agents_package_for(executable: &Path) -> Option<&'static str> {
    (executable.parent() == Some(Path::new("/usr/bin"))).then_some("hostbuf-agents")
}

fn mend_for(executable: &Path, flavour: &str) -> String {
    let folder = executable.parent().filter(|bin| bin.ends_with("bin"));
    let command = match folder.and_then(Path::parent) {
        // Only the system's packages install there.
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
    fn the_remedy_names_the_place_of_the_installation() {
        for (executable, flavour, mend) in [
            ("/home/u/.cargo/bin/hostbuf", "openmpi4", "scripts/install --prefix /home/u/.cargo openmpi4"),
            ("/usr/bin/hostbuf", "", "scripts/install --prefix /usr/local"),
            ("/src/target/release/hostbuf", "mpich4", "scripts/build mpich4"),
        ] {
            assert_eq!(mend_for(Path::new(executable), flavour), mend);
            let is_packaged = agents_package_for(Path::new(executable)).is_some();
            assert_eq!(is_packaged, executable.starts_with("/usr/bin"));
        }
    }
}
