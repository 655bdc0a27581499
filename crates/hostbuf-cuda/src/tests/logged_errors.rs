//! The errors that destructors log.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use super::fake_driver::{ILLEGAL_ADDRESS, fake, new_context};
use crate::{CudaEvent, DeviceMemory};

/// A writer that keeps the messages.
#[derive(Clone, Default)]
struct MessageLog(Arc<Mutex<Vec<u8>>>);

impl Write for MessageLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no test panics with it").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the lines that `run` logs.
pub(super) fn messages_of(run: impl FnOnce()) -> Vec<String> {
    let log = MessageLog::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .without_time()
        .finish();
    tracing::subscriber::with_default(subscriber, run);
    let bytes = log.0.lock().expect("no test panics with it");
    String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect()
}

#[test]
fn a_destructor_that_the_driver_refuses_logs_the_object_and_the_error() {
    let context = new_context();
    let memory = DeviceMemory::new(&context, 4096).expect("nothing fails");
    let event = CudaEvent::new(&context).expect("nothing fails");
    fake(|fake| fake.failing = vec![("cuMemFree_v2", ILLEGAL_ADDRESS)]);
    assert_eq!(messages_of(|| drop(event)), Vec::<String>::new());
    let address = memory.address();
    let messages = messages_of(|| drop(memory));
    assert_eq!(messages.len(), 1, "{messages:?}");
    let object = format!("{address:#x} (4 KiB) is not released: cuMemFree returned");
    for part in ["ERROR", &object, "start the process again"] {
        assert!(messages[0].contains(part), "{part:?} is not in {messages:?}");
    }
}
