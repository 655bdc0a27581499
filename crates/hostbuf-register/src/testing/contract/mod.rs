//! A test suite for the contract of [`Registrar`], which every registrar of this crate passes. A
//! registrar of another crate runs it from a test of its own:
//!
//! ```
//! use hostbuf_register::testing::contract;
//! # use hostbuf_register::Mlock as MyRegistrar;
//!
//! // #[test]
//! fn my_registrar_keeps_the_contract() {
//!     contract::check(MyRegistrar::new);
//! }
//! # my_registrar_keeps_the_contract();
//! ```
//!
//! [`Contract`] adds what only the author of a registrar knows: the number of registrations and of
//! pinned bytes that the device reports, and samples of other kinds of memory.

mod hooks;
mod mapped_area;
mod promises;
mod subject;
mod violation;

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::memory::Memory;
use crate::registrar::Registrar;
use hooks::Hooks;
use subject::Subject;
use violation::broken;

pub use violation::{Promise, Violation};

/// The promises that the suite has checked, and the reasons why it could not check the rest.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ContractReport {
    /// The promises that the registrar has kept.
    pub kept: Vec<Promise>,
    /// The promises, or parts of them, that could not be checked, with the reasons.
    pub unchecked: Vec<(Promise, String)>,
}

/// The suite for one registrar, with optional help from its author.
///
/// ```
/// use hostbuf_register::Overlap;
/// use hostbuf_register::testing::contract::Contract;
/// use hostbuf_register::testing::fake::Fake;
///
/// let report = Contract::new(|| Fake::new(Overlap::Refused))
///     .live(|fake| fake.live_memory().len())
///     .pinned(Fake::pinned)
///     .ignores_mappings()
///     .sample(|| hostbuf_register::DeviceRange::new(0x1000, 4096).unwrap().into())
///     .run();
/// // The fake registers dma-bufs too, and there is no sample of one.
/// assert!(report.unwrap_err().to_string().contains("dma-buf"));
/// ```
pub struct Contract<R> {
    make: Box<dyn Fn() -> R>,
    hooks: Hooks<R>,
}

/// Runs the suite with registrars that `make` returns. Each part of the suite has a new one.
///
/// # Panics
/// If the registrar breaks a promise; the message names the promise and the operands.
pub fn check<R: Registrar<Key: Debug + PartialEq>>(make: impl Fn() -> R + 'static) {
    Contract::new(make).check();
}

impl<R: Registrar<Key: Debug + PartialEq>> Contract<R> {
    /// Makes the suite for registrars that `make` returns. Each part of the suite has a new one.
    pub fn new(make: impl Fn() -> R + 'static) -> Contract<R> {
        let hooks = Hooks { live: None, pinned: None, samples: Vec::new(), ignores_mappings: false };
        Contract { make: Box::new(make), hooks }
    }

    /// Adds a function that returns the number of live registrations, as the device counts them.
    #[must_use]
    pub fn live(mut self, live: impl Fn(&R) -> usize + 'static) -> Contract<R> {
        self.hooks.live = Some(Box::new(live));
        self
    }

    /// Adds a function that returns the number of pinned bytes, as the device or the kernel counts
    /// them.
    #[must_use]
    pub fn pinned(mut self, pinned: impl Fn(&R) -> usize + 'static) -> Contract<R> {
        self.hooks.pinned = Some(Box::new(pinned));
        self
    }

    /// Adds a function that returns memory of another kind than host memory, which the registrar
    /// registers.
    #[must_use]
    pub fn sample(mut self, sample: impl Fn() -> Memory + 'static) -> Contract<R> {
        self.hooks.samples.push(Box::new(sample));
        self
    }

    /// States that the registrar accepts host memory that is not mapped, since it has no device.
    #[must_use]
    pub fn ignores_mappings(mut self) -> Contract<R> {
        self.hooks.ignores_mappings = true;
        self
    }

    /// Runs the suite, and prints what it could not check.
    ///
    /// # Panics
    /// If the registrar breaks a promise; the message names the promise and the operands.
    pub fn check(&self) {
        match self.run() {
            Ok(report) => {
                for (promise, why) in report.unchecked {
                    println!("not checked: {promise:?}: {why}");
                }
            }
            Err(violation) => panic!("{violation}"),
        }
    }

    /// Runs the suite.
    ///
    /// # Errors
    /// The first promise that the registrar breaks.
    pub fn run(&self) -> Result<ContractReport, Violation> {
        let mut report = ContractReport::default();
        for (promise, part) in promises::all::<R>() {
            let unchecked = self.run_part(promise, part)?;
            if unchecked.is_empty() {
                report.kept.push(promise);
            }
            report.unchecked.extend(unchecked.into_iter().map(|why| (promise, why)));
        }
        Ok(report)
    }

    /// Runs one part with a registrar of its own. Returns the reasons why it is incomplete.
    fn run_part(&self, promise: Promise, part: promises::PromisePart<R>) -> Result<Vec<String>, Violation> {
        let run = || {
            let mut subject = Subject::new((self.make)(), &self.hooks)?;
            part(&mut subject)?;
            subject.expect_nothing_left(Promise::Ends)?;
            Ok(subject.into_unchecked())
        };
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            Err(broken(promise, format!("a panic: {text}")))
        })
    }
}
