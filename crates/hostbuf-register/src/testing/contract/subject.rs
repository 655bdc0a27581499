//! The registrar under test, with the checks that the parts of the suite share.

use std::sync::Arc;

use super::hooks::Hooks;
use super::mapped_area::MappedArea;
use super::violation::{Promise, Violation, broken};
use crate::error::Error;
use crate::memory::Memory;
use crate::properties::RegistrarProperties;
use crate::registrar::Registrar;
use crate::span::{Access, Span};

/// The result of a check.
pub(super) type CheckResult<T = ()> = Result<T, Violation>;

/// The number of units in the longest range of the suite.
pub(super) const UNITS: usize = 64;

/// A registrar under test.
pub(super) struct Subject<'a, R> {
    pub(super) registrar: Arc<R>,
    pub(super) properties: RegistrarProperties,
    hooks: &'a Hooks<R>,
    /// The number of pinned bytes before the test.
    pinned_before: usize,
    unchecked: Vec<String>,
}

impl<'a, R: Registrar> Subject<'a, R> {
    pub(super) fn new(registrar: R, hooks: &'a Hooks<R>) -> CheckResult<Subject<'a, R>> {
        let properties = registrar.properties();
        let invalid = |error: Error| broken(Promise::Properties, error.to_string());
        let properties = properties.check(&registrar.name()).map_err(invalid)?;
        if properties.longest < UNITS {
            let longest = properties.longest;
            let why = format!("the longest range has {longest} bytes, and this suite needs {UNITS}");
            return Err(broken(Promise::Longest, why));
        }
        let pinned_before = hooks.pinned.as_ref().map_or(0, |pinned| pinned(&registrar));
        let registrar = Arc::new(registrar);
        Ok(Subject { registrar, properties, hooks, pinned_before, unchecked: Vec::new() })
    }

    /// Returns the size that the suite uses in place of a page: less if the longest range has fewer
    /// than [`UNITS`] pages.
    pub(super) fn unit(&self) -> usize {
        (hostbuf_os::memory::page_size() as usize).min(self.properties.longest / UNITS)
    }

    /// Maps memory for the test.
    pub(super) fn area(&self, length: usize) -> CheckResult<MappedArea> {
        MappedArea::new(length).map_err(|why| broken(Promise::WholeOrNothing, why))
    }

    /// Returns whether the registrar has no device that checks whether memory is mapped.
    pub(super) fn ignores_mappings(&self) -> bool {
        self.hooks.ignores_mappings
    }

    /// Returns the samples of other kinds of memory.
    pub(super) fn samples(&self) -> impl Iterator<Item = Memory> + 'a {
        self.hooks.samples.iter().map(|sample| sample())
    }

    /// Registers memory, which is a promise.
    pub(super) fn register(
        &self,
        promise: Promise,
        memory: impl Into<Memory>,
        access: Access,
    ) -> CheckResult<R::Handle> {
        let memory = memory.into();
        let registered = self.registrar.register(&memory, access);
        registered.map_err(|error| broken(promise, format!("registering {memory} ({access}) fails: {error}")))
    }

    /// Ends a registration, which is a promise.
    pub(super) fn deregister(
        &self,
        promise: Promise,
        memory: impl Into<Memory>,
        handle: R::Handle,
    ) -> CheckResult {
        let memory = memory.into();
        let ended = self.registrar.deregister(&memory, handle);
        ended.map_err(|error| broken(promise, format!("deregistering {memory} fails: {error}")))
    }

    /// Registers memory and ends the registration.
    pub(super) fn once(&self, promise: Promise, span: Span, access: Access) -> CheckResult {
        let handle = self.register(promise, span, access)?;
        self.deregister(promise, span, handle)
    }

    /// Registers memory that the device must refuse. The error must state the operands.
    pub(super) fn expect_refusal(
        &self,
        promise: Promise,
        span: Span,
        access: Access,
        why: &str,
    ) -> CheckResult {
        let Err(error) = self.registrar.register(&span.into(), access) else {
            return Err(broken(promise, format!("registering {span} ({access}) succeeds, but {why}")));
        };
        let Error::Registration { device, memory, why, .. } = &error else {
            let kind = error.kind();
            return Err(broken(
                Promise::Errors,
                format!("{kind} is not the error of a registration: {error}"),
            ));
        };
        let wrong = if *device != self.registrar.name() {
            Some(format!("it names the device \"{device}\""))
        } else if *memory != Memory::Host(span) {
            Some(format!("it names {memory} instead of {span}"))
        } else if why.trim().is_empty() {
            Some("it has no reason".to_owned())
        } else {
            (error.to_string().lines().count() != 1).then(|| "it is not one line".to_owned())
        };
        wrong.map_or(Ok(()), |wrong| Err(broken(Promise::Errors, format!("{wrong}: {error}"))))
    }

    /// Checks the number of live registrations, if the device reports it.
    pub(super) fn expect_live(&self, promise: Promise, expected: usize) -> CheckResult {
        match self.hooks.live.as_ref().map(|live| live(&self.registrar)) {
            Some(found) if found != expected => {
                Err(broken(promise, format!("{found} registrations are live instead of {expected}")))
            }
            _ => Ok(()),
        }
    }

    /// Returns the number of bytes that are pinned since the test began, if the device reports it.
    pub(super) fn pinned(&self) -> Option<usize> {
        let pinned = self.hooks.pinned.as_ref()?;
        Some(pinned(&self.registrar).saturating_sub(self.pinned_before))
    }

    /// Checks that nothing is registered any more.
    pub(super) fn expect_nothing_left(&self, promise: Promise) -> CheckResult {
        self.expect_live(promise, 0)?;
        match self.pinned() {
            Some(bytes) if bytes > 0 => {
                Err(broken(promise, format!("{bytes} bytes are pinned without a registration")))
            }
            _ => Ok(()),
        }
    }

    /// Records the reason why a promise is not checked in full.
    pub(super) fn leave_unchecked(&mut self, why: &str) {
        self.unchecked.push(why.to_owned());
    }

    /// Returns the reasons why promises were not checked in full.
    pub(super) fn into_unchecked(self) -> Vec<String> {
        self.unchecked
    }
}
