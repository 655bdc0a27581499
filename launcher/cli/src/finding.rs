//! The findings of `hostbuf doctor`.

use serde_json::{Map, Value};

/// The grade of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Nothing is missing.
    Ok,
    /// Information that requires no action.
    Note,
    /// Something is missing.
    Lacks,
}

impl Mark {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mark::Ok => "ok",
            Mark::Note => "note",
            Mark::Lacks => "lacks",
        }
    }
}

/// The result of one check.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    /// The subject. Programs rely on it, so it does not change.
    pub(crate) name: String,
    pub(crate) mark: Mark,
    pub(crate) says: String,
    /// The commands that remedy the shortfall.
    pub(crate) mends: Vec<String>,
    /// True if this host cannot have a buffer without it.
    pub(crate) needed: bool,
    /// Figures for programs, with the unit in the name of each.
    pub(crate) values: Map<String, Value>,
}

impl Finding {
    fn new(name: impl Into<String>, mark: Mark, says: impl Into<String>) -> Finding {
        let (name, says) = (name.into(), says.into());
        Finding { name, mark, says, mends: Vec::new(), needed: false, values: Map::new() }
    }

    pub(crate) fn ok(name: impl Into<String>, says: impl Into<String>) -> Finding {
        Finding::new(name, Mark::Ok, says)
    }

    pub(crate) fn note(name: impl Into<String>, says: impl Into<String>) -> Finding {
        Finding::new(name, Mark::Note, says)
    }

    pub(crate) fn lacks(name: impl Into<String>, says: impl Into<String>) -> Finding {
        Finding::new(name, Mark::Lacks, says)
    }

    pub(crate) fn mend(mut self, command: impl Into<String>) -> Finding {
        self.mends.push(command.into());
        self
    }

    pub(crate) fn needed(mut self) -> Finding {
        self.needed = true;
        self
    }

    pub(crate) fn value(mut self, key: &str, value: impl Into<Value>) -> Finding {
        self.values.insert(key.into(), value.into());
        self
    }
}
