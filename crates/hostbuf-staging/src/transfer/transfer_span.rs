//! The span of a transfer, for subscribers of `tracing`.

use std::fmt;

use tracing::field::{Empty, display};
use tracing::span::Entered;
use tracing::{Span, debug_span};

use super::transfer_error::TransferError;

/// The span `transfer`, a child of the span in which the transfer was started. It is a few
/// comparisons if no subscriber wants it.
pub(crate) struct TransferSpan(Span);

impl TransferSpan {
    /// Makes the span of a transfer. `name` is called if a subscriber wants it.
    pub(crate) fn new(verb: &'static str, name: impl Fn() -> String, bytes: u64) -> TransferSpan {
        let span = debug_span!("transfer", verb, name = %Named(name), bytes, landed = Empty, error = Empty);
        TransferSpan(span)
    }

    /// Makes the span of a transfer of which no bytes move.
    pub(crate) fn none() -> TransferSpan {
        TransferSpan(Span::none())
    }

    /// Enters the span, in a thread that reads or writes a piece of the transfer.
    pub(crate) fn enter(&self) -> Entered<'_> {
        self.0.enter()
    }

    /// Records the bytes of a transfer that has landed, or its error. `result` is called if a
    /// subscriber wants it.
    pub(crate) fn record(&self, result: impl FnOnce() -> Result<u64, TransferError>) {
        if self.0.is_disabled() {
            return;
        }
        match result() {
            Ok(landed) => self.0.record("landed", landed),
            Err(error) => self.0.record("error", display(error)),
        };
    }
}

/// A name that is made when it is written.
struct Named<F>(F);

impl<F: Fn() -> String> fmt::Display for Named<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&(self.0)())
    }
}
