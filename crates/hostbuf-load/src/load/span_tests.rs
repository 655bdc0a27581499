//! The span of a load.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use hostbuf::job::Solo;
use hostbuf::{BufferOptions, HostBuffer};
use tracing::{Level, info_span};
use tracing_subscriber::fmt::format::FmtSpan;

use super::LoadOptions;
use crate::test_folder::TestFolder;

/// A writer that keeps the messages.
#[derive(Clone, Default)]
struct MessageLog(Arc<Mutex<Vec<u8>>>);

impl Write for MessageLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Loads two files within a span, the second of them missing if `fails`. Returns the messages in
/// the span of the load, up to `level`, including those of spans that close.
fn messages_of_load(level: Level, fails: bool) -> Vec<String> {
    let folder = TestFolder::new(&format!("spans-{level}-{fails}"));
    let mut files = vec![folder.write("a.bin", &[1; 5000]), folder.write("b.bin", &[2; 70_000])];
    if fails {
        files[1] = folder.path().join("none.bin");
    }
    let log = MessageLog::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_span_events(FmtSpan::CLOSE)
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .without_time()
        .finish();
    tracing::subscriber::with_default(subscriber, || {
        let _step = info_span!("step", number = 7).entered();
        let options = BufferOptions::new(1 << 20).name("weights");
        let buffer = HostBuffer::allocate(&Solo, options).expect("there is memory");
        assert_eq!(LoadOptions::new().load(&Solo, &buffer, &files).is_err(), fails);
    });
    let messages = String::from_utf8(log.0.lock().unwrap().clone()).expect("messages are text");
    messages.lines().filter(|line| line.contains(":load{")).map(|line| line.trim_end().to_owned()).collect()
}

/// The spans of a message of the load itself.
const SPANS: &str = " step{number=7}:load{buffer=weights}: ";

#[test]
fn a_span_names_the_buffer_and_tells_of_the_end_of_a_load() {
    for level in [Level::INFO, Level::DEBUG] {
        let messages = messages_of_load(level, false);
        let of_load: Vec<_> = messages.iter().filter(|line| line.contains(SPANS)).collect();
        let loaded = of_load.iter().filter(|line| line.contains(": loaded bytes=75000 hosts=1 elapsed="));
        assert_eq!(loaded.count(), 1, "{messages:?}");
        let closed = of_load.iter().filter(|line| line.ends_with(": close"));
        assert_eq!(closed.count(), 1, "{messages:?}");
    }
}

#[test]
fn the_span_of_a_load_that_fails_ends() {
    let messages = messages_of_load(Level::INFO, true);
    let [closed] = &messages[..] else { panic!("{messages:?}") };
    assert!(closed.contains(SPANS) && closed.ends_with(": close"), "{messages:?}");
}

#[test]
fn a_load_is_no_span_above_the_level_of_information() {
    assert_eq!(messages_of_load(Level::WARN, false), Vec::<String>::new());
}
