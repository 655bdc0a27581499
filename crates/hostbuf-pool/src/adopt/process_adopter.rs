//! The adopters that all parts of a process share.

use std::mem;
use std::sync::{Arc, Mutex};

use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_os::forking::hold_around_fork;
use hostbuf_os::poison::IgnorePoison;
use hostbuf_os::process_lock::ProcessLock;
use hostbuf_register::{Access, Device, DeviceName, Span};

use super::adopted::Adopted;
use super::adopter::Adopter;
use super::error::AdoptError;
use super::options::AdoptOptions;

/// An adopter with the name of its device, and the process that made it.
struct NamedAdopter {
    name: String,
    fork_guard: ForkGuard,
    adopter: Arc<Adopter<Device>>,
}

static ADOPTERS: Mutex<Vec<NamedAdopter>> = Mutex::new(Vec::new());
/// The lock of a thread that opens a device, which takes too long for a fork to wait.
static OPENING: ProcessLock = ProcessLock::new();

/// Returns the adopter of this process for a device, which the first call makes with the options
/// of the environment (`HOSTBUF_ADOPT_BYTES`). The first call opens the device: before it, no
/// driver is loaded.
///
/// # Errors
/// [`AdoptError::Registration`] if the device cannot be opened, [`AdoptError::Invalid`] for an
/// invalid environment variable.
pub fn process_adopter(name: &DeviceName) -> Result<Arc<Adopter<Device>>, AdoptError> {
    hold_around_fork!(ADOPTERS: Vec<NamedAdopter>);
    let text = name.to_string();
    if let Some(known) = known(&text) {
        return Ok(known);
    }
    let _opening = OPENING.lock();
    if let Some(known) = known(&text) {
        return Ok(known);
    }
    let options = AdoptOptions::from_environment()?;
    let adopter = Arc::new(Adopter::new(Arc::new(name.open()?), options)?);
    let named = NamedAdopter { name: text, fork_guard: ForkGuard::current(), adopter: adopter.clone() };
    let mut all = ADOPTERS.lock().ignore_poison();
    // A device of the parent would end the parent's registrations.
    let (own, inherited) = mem::take(&mut *all).into_iter().partition(|one| one.fork_guard.is_current());
    mem::forget::<Vec<NamedAdopter>>(inherited);
    *all = own;
    all.push(named);
    Ok(adopter)
}

fn known(name: &str) -> Option<Arc<Adopter<Device>>> {
    let all = ADOPTERS.lock().ignore_poison();
    let of_process = |one: &&NamedAdopter| one.name == name && one.fork_guard.is_current();
    all.iter().find(of_process).map(|one| one.adopter.clone())
}

/// Adopts `length` bytes at `address` for reading by the GPUs of this process (the device `cuda`),
/// with the [adopter of the process](process_adopter).
///
/// # Errors
/// As [`process_adopter`] and [`Adopter::adopt`].
pub fn adopt(address: *const u8, length: usize) -> Result<Adopted<Device>, AdoptError> {
    let span = Span::new(address as usize, length)?;
    process_adopter(&"cuda".parse()?)?.adopt(span, Access::READ)
}
