//! The release of an engine.

/// The MPI release, or the release of a resource manager, to which a launch command belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Release {
    /// The name for messages.
    pub(crate) name: &'static str,
    /// The version as printed; empty if it is unknown.
    pub(crate) version: String,
    /// The flavour of the agent that is built for this release, such as `openmpi4`.
    pub(crate) flavour: Option<String>,
}

impl Release {
    /// Returns the release of `name` with the text `version`. Agents are built for each `family`
    /// and major version.
    pub(crate) fn new(name: &'static str, version: String, family: Option<&str>) -> Release {
        let release = Release { name, version, flavour: None };
        let flavour = family.zip(release.major()).map(|(family, major)| format!("{family}{major}"));
        Release { flavour, ..release }
    }

    /// Returns the major version, if the version begins with a number.
    pub(crate) fn major(&self) -> Option<u32> {
        let digits = self.version.trim_start_matches(|c: char| !c.is_ascii_digit());
        let digits = if digits.len() == self.version.len() { digits } else { "" };
        digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    }

    /// Returns the name and the major version for messages.
    pub(crate) fn title(&self) -> String {
        self.major().map_or(self.name.to_owned(), |major| format!("{} {major}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flavour_consists_of_the_family_and_the_major_version() {
        for (version, flavour, title) in [
            ("4.1.4", Some("openmpi4"), "Open MPI 4"),
            ("5.0.6rc1", Some("openmpi5"), "Open MPI 5"),
            ("10", Some("openmpi10"), "Open MPI 10"),
            ("v4.1", None, "Open MPI"),
            ("", None, "Open MPI"),
        ] {
            let release = Release::new("Open MPI", version.into(), Some("openmpi"));
            assert_eq!((release.flavour.as_deref(), &*release.title()), (flavour, title), "{version}");
        }
    }
}
