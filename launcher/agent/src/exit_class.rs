//! The exit statuses by which `hostbuf` and its agents state the class of an error.

use std::fmt::Display;
use std::process::ExitCode;

use hostbuf::Error;

/// The class of an error. The number is the exit status: 80 plus the number of the `hostbuf_status`
/// where there is one, so that it differs from the statuses of shells and from most programs' own.
/// docs/failures.md has the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitClass {
    /// An error of no other class.
    General = 1,
    /// The command line or an environment variable is invalid.
    Usage = 2,
    /// This host, or this build, cannot do it.
    Unsupported = 82,
    /// There is not enough memory.
    NoSpace = 83,
    /// The ranks have no common address, or made different requests.
    Disagreed = 84,
    /// The kernel refused.
    Os = 85,
    /// An agent could not be started or reached, or has ended.
    Agent = 86,
    /// A rank has ended, or could not continue, before all ranks had the buffer.
    Lost = 87,
    /// The control page is damaged.
    Corrupt = 88,
    /// The program exists, but cannot be executed.
    NotExecutable = 126,
    /// The program does not exist.
    NotFound = 127,
}

impl ExitClass {
    const ALL: [ExitClass; 11] = [
        ExitClass::General,
        ExitClass::Usage,
        ExitClass::Unsupported,
        ExitClass::NoSpace,
        ExitClass::Disagreed,
        ExitClass::Os,
        ExitClass::Agent,
        ExitClass::Lost,
        ExitClass::Corrupt,
        ExitClass::NotExecutable,
        ExitClass::NotFound,
    ];

    /// Returns the class of an error.
    pub fn of(error: &Error) -> ExitClass {
        match error {
            Error::Invalid { .. } => ExitClass::Usage,
            Error::Unsupported { .. } => ExitClass::Unsupported,
            Error::NoSpace { .. } => ExitClass::NoSpace,
            Error::Disagreed { .. } => ExitClass::Disagreed,
            Error::Os { .. } => ExitClass::Os,
            Error::Attach { .. } => ExitClass::Agent,
            Error::Lost { .. } => ExitClass::Lost,
            Error::Corrupt { .. } => ExitClass::Corrupt,
            _ => ExitClass::General,
        }
    }

    /// Returns the class with an exit status, or `None` if no class has it.
    pub fn from_status(status: u8) -> Option<ExitClass> {
        ExitClass::ALL.into_iter().find(|class| class.status() == status)
    }

    /// Returns the exit status.
    pub fn status(self) -> u8 {
        self as u8
    }

    /// Returns whether the program of a rank cannot run at all.
    pub fn is_of_program(self) -> bool {
        matches!(self, ExitClass::NotExecutable | ExitClass::NotFound)
    }

    /// Prints one line on standard error, with `speaker` in front, and returns the exit status of
    /// the process.
    pub fn end(self, speaker: &str, message: impl Display) -> ExitCode {
        complain!("{speaker}: {message}");
        self.into()
    }
}

impl From<ExitClass> for ExitCode {
    fn from(class: ExitClass) -> ExitCode {
        ExitCode::from(class.status())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_identifies_its_class() {
        for class in ExitClass::ALL {
            assert_eq!(ExitClass::from_status(class.status()), Some(class));
        }
        assert_eq!(ExitClass::from_status(0), None);
        assert_eq!(ExitClass::from_status(137), None);
    }

    #[test]
    fn the_documentation_has_a_row_for_each_status() {
        let docs = include_str!("../../../docs/failures.md");
        for class in ExitClass::ALL {
            let row = format!("\n| {} | ", class.status());
            assert!(docs.contains(&row), "docs/failures.md has no row for {class:?}");
        }
    }
}
