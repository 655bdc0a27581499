//! The registrations of a segment with registrars of a caller.

use std::any::Any;
use std::sync::{Arc, Mutex};

use hostbuf_os::poison::IgnorePoison;
use hostbuf_register::{Access, Registrar, Registration, Result, Span};

use crate::segment::DataView;

/// The registrations of all blocks of a segment with registrars of a caller, at most one for each
/// registrar and access. They end with the segment.
#[derive(Debug, Default)]
pub(super) struct CallerRegistrations {
    made: Mutex<Vec<CallerRegistration>>,
}

#[derive(Debug)]
struct CallerRegistration {
    access: Access,
    /// A [`RegisteredWith`] of some registrar.
    registration: Box<dyn Any + Send + Sync>,
}

/// A registration with its registrar.
struct RegisteredWith<R: Registrar> {
    registrar: Arc<R>,
    registration: Registration<R>,
}

impl CallerRegistrations {
    /// Returns the key of the registration of all blocks, which the first call makes.
    ///
    /// # Errors
    /// As [`Registrar::register`].
    pub(super) fn key<R: Registrar>(
        &self,
        registrar: &Arc<R>,
        access: Access,
        data: &Arc<DataView>,
    ) -> Result<R::Key> {
        // The lock is held while the device registers: a second thread would register it again.
        let mut made = self.made.lock().ignore_poison();
        let known = made.iter().filter(|known| known.access == access);
        let mut known = known.filter_map(|known| known.registration.downcast_ref::<RegisteredWith<R>>());
        if let Some(known) = known.find(|known| Arc::ptr_eq(&known.registrar, registrar)) {
            return Ok(registrar.key(known.registration.handle()));
        }
        let (start, length) = data.range();
        let span = Span::new(start, length)?;
        let registration = Registration::with_keepalive(registrar, span, access, data.clone())?;
        let key = registrar.key(registration.handle());
        let registered = RegisteredWith { registrar: registrar.clone(), registration };
        made.push(CallerRegistration { access, registration: Box::new(registered) });
        Ok(key)
    }
}
