//! The registration cache, against a registrar that counts; and registrations with an RDMA device, in a virtual machine.

#![allow(unsafe_code)]

mod budget;
mod contract;
mod forks;
#[cfg(feature = "cuda")]
mod gpu;
mod memory;
mod races;
mod scenarios;
mod stale;
mod vm;
mod windows;

use std::sync::Arc;

use hostbuf::register::fake::Fake;
use hostbuf::register::{Access, Budget, Monitor, Overlap, RegistrationCache, Span};

const MANY: Budget = Budget { regions: 1024, bytes: 1 << 40 };

/// A cache over a new fake.
fn cache(overlap: Overlap, budget: Budget, monitor: Monitor) -> (Arc<Fake>, RegistrationCache<Fake>) {
    let fake = Arc::new(Fake::new(overlap));
    let cache = RegistrationCache::new(fake.clone(), budget, monitor).expect("a budget with room");
    (fake, cache)
}

/// The usual one: the program tells, and registrations may overlap.
fn explicit(budget: Budget) -> (Arc<Fake>, RegistrationCache<Fake>) {
    cache(Overlap::Free, budget, Monitor::Explicit)
}

fn span(start: usize, length: usize) -> Span {
    Span::new(start, length).expect("a range")
}

/// A pointer to no memory: the fake does not look.
fn at(address: usize) -> *const u8 {
    address as *const u8
}

const READ: Access = Access::READ;
