//! Locks of memory that are counted.

use std::sync::atomic::{AtomicUsize, Ordering};

use hostbuf::register::{Access, Error, Memory, Mlock, Registrar, RegistrarProperties};

/// A registrar that locks pages by mlock(2), and counts its registrations that have not ended.
#[derive(Default)]
pub(crate) struct CountedLocks {
    locks: Mlock,
    live: AtomicUsize,
}

impl CountedLocks {
    pub(crate) fn live(&self) -> usize {
        self.live.load(Ordering::SeqCst)
    }
}

impl Registrar for CountedLocks {
    type Handle = ();
    type Key = ();

    fn name(&self) -> String {
        self.locks.name()
    }

    fn properties(&self) -> RegistrarProperties {
        self.locks.properties()
    }

    fn key(&self, (): &()) {}

    fn register(&self, memory: &Memory, access: Access) -> Result<(), Error> {
        self.locks.register(memory, access)?;
        self.live.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn deregister(&self, memory: &Memory, handle: ()) -> Result<(), Error> {
        self.locks.deregister(memory, handle)?;
        self.live.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }
}
