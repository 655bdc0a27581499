//! Facts that the kernel or a driver does not state.

use std::fmt;

/// A fact that a topology assumes, since neither the kernel nor a driver states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assumption {
    pub(crate) subject: String,
    pub(crate) text: String,
    pub(crate) remedy: Option<String>,
}

impl Assumption {
    /// Returns the subject: the name of a device, `nodes` or `NVML`.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// Returns the missing fact and the assumption, as one clause.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the remedy, or `None` if none is needed.
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        self.remedy.as_deref()
    }
}

impl fmt::Display for Assumption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.subject, self.text)?;
        self.remedy.as_ref().map_or(Ok(()), |remedy| write!(f, ": {remedy}"))
    }
}
