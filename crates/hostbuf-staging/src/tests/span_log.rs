//! Spans and messages of `tracing` that a test reads.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use tracing::{Level, Subscriber};
use tracing_subscriber::fmt::format::FmtSpan;

/// A writer that keeps the messages.
#[derive(Clone, Default)]
pub(crate) struct SpanLog(Arc<Mutex<Vec<u8>>>);

impl SpanLog {
    /// Makes a subscriber that writes here, up to a level.
    pub(crate) fn subscriber(
        &self,
        level: Level,
        of_spans: FmtSpan,
    ) -> impl Subscriber + Send + Sync + use<> {
        let log = self.clone();
        tracing_subscriber::fmt()
            .with_max_level(level)
            .with_span_events(of_spans)
            .with_writer(move || log.clone())
            .with_ansi(false)
            .without_time()
            .finish()
    }

    /// Returns the messages so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        String::from_utf8_lossy(&self.0.lock().unwrap()).lines().map(str::to_owned).collect()
    }
}

impl Write for SpanLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
