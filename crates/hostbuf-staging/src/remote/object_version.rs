//! The version of an object.

use reqwest::header::{ETAG, HeaderMap, HeaderName, LAST_MODIFIED};

/// The version of an object, as the first answer has stated it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ObjectVersion {
    /// The number of bytes.
    pub(super) bytes: u64,
    pub(super) etag: Option<String>,
    pub(super) modified: Option<String>,
}

impl ObjectVersion {
    pub(super) fn new(bytes: u64, headers: &HeaderMap) -> ObjectVersion {
        ObjectVersion { bytes, etag: text(headers, ETAG), modified: text(headers, LAST_MODIFIED) }
    }

    /// Compares the version with a later answer. Returns the difference.
    pub(super) fn difference(&self, headers: &HeaderMap, total: Option<u64>) -> Option<String> {
        if let Some(total) = total.filter(|&total| total != self.bytes) {
            return Some(format!("it had {} bytes and has {total}", self.bytes));
        }
        let differs = |name: &str, before: &Option<String>, now: Option<String>| match (before, now) {
            (Some(before), Some(now)) if *before != now => {
                Some(format!("its {name} was {before} and is {now}"))
            }
            _ => None,
        };
        // Servers that have copies of an object may state other times.
        match (&self.etag, text(headers, ETAG)) {
            (Some(_), now @ Some(_)) => differs("ETag", &self.etag, now),
            _ => differs("time of the last change", &self.modified, text(headers, LAST_MODIFIED)),
        }
    }
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_owned())
}
