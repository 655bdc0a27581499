//! The promises of a registrar, and the error for a broken one.

use std::fmt;

/// A promise of [`Registrar`](crate::Registrar), as its documentation lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Promise {
    /// The name is one short line.
    Name,
    /// The device knows all of the memory after success, and nothing after an error.
    WholeOrNothing,
    /// The properties are valid and constant.
    Properties,
    /// The device treats overlaps as the properties state.
    Overlap,
    /// The device pins whole multiples of the granularity.
    Granularity,
    /// The device returns an error for a range longer than the longest one.
    Longest,
    /// A kind of memory that the properties do not include is unsupported.
    KindsOfMemory,
    /// A deregistration ends one registration, all of it, and no other.
    Ends,
    /// The key of a registration is constant while the registration lives.
    Keys,
    /// An error states the device, the memory and a reason.
    Errors,
    /// Several threads may call all methods concurrently.
    Threads,
    /// [`Registration`](crate::Registration) works with the registrar.
    Registration,
    /// [`RegistrationCache`](crate::RegistrationCache) works with the registrar.
    Cache,
}

/// A promise that a registrar has broken.
#[derive(Clone, Debug)]
pub struct Violation {
    promise: Promise,
    details: String,
}

/// Makes the violation of a promise.
pub(super) fn broken(promise: Promise, details: impl Into<String>) -> Violation {
    Violation { promise, details: details.into() }
}

impl Violation {
    /// Returns the broken promise.
    #[must_use]
    pub fn promise(&self) -> Promise {
        self.promise
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the registrar breaks its promise {:?}: {}", self.promise, self.details)
    }
}

impl std::error::Error for Violation {}
