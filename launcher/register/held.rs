//! The registrations of this process: made before `main`, and there until it ends.

use std::ffi::CString;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[cfg(feature = "cuda")]
use hostbuf::register::CudaHost;
use hostbuf::register::{Access, Mlock, Registration, Span};
#[cfg(feature = "rdma")]
use hostbuf::register::{Registrar, Verbs};
use hostbuf::{Error, Fill, HostBuffer, Result};

use crate::device::{Devices, Kind};
use crate::exports::Described;

/// What makes registrations with one device. It stays, so that protection domains and contexts do.
enum Maker {
    Mlock(Arc<Mlock>),
    #[cfg(feature = "cuda")]
    Cuda(Arc<CudaHost>),
    #[cfg(feature = "rdma")]
    Rdma(Arc<Verbs>),
}

/// A registration with it.
enum Made {
    Mlock(Registration<Mlock>),
    #[cfg(feature = "cuda")]
    Cuda(Registration<CudaHost>),
    #[cfg(feature = "rdma")]
    Rdma(Registration<Verbs>),
}

/// A buffer and a device.
struct Pair {
    buffer: HostBuffer,
    /// Which of the makers.
    maker: usize,
    /// `None` while a freeze is under way, and when it could not be made again.
    made: Option<Made>,
}

struct Held {
    makers: Vec<(Maker, CString)>,
    pairs: Vec<Pair>,
}

static HELD: Mutex<Held> = Mutex::new(Held { makers: Vec::new(), pairs: Vec::new() });

fn held() -> MutexGuard<'static, Held> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Maker {
    /// # Errors
    /// [`Error::Unsupported`] or [`Error::Invalid`] where there is no such device.
    fn open(kind: &Kind) -> Result<(Maker, String)> {
        #[allow(unused_variables, reason = "without the features nobody asks")]
        let absent = |feature: &str, mend: &str| Error::Unsupported {
            what: format!("--register {kind}"),
            why: format!("this object was built without {feature}; {mend}"),
        };
        Ok(match kind {
            Kind::Mlock => (Maker::Mlock(Arc::new(Mlock::new())), "mlock".into()),
            #[cfg(feature = "cuda")]
            Kind::Cuda(ordinal) => {
                (Maker::Cuda(Arc::new(CudaHost::new(*ordinal)?)), format!("cuda {ordinal}"))
            }
            #[cfg(not(feature = "cuda"))]
            Kind::Cuda(_) => return Err(absent("CUDA", "build it with the feature cuda")),
            #[cfg(feature = "rdma")]
            Kind::Rdma(name) => {
                let verbs = Verbs::open(name.as_deref())?;
                let name = verbs.name();
                (Maker::Rdma(Arc::new(verbs)), name)
            }
            #[cfg(not(feature = "rdma"))]
            Kind::Rdma(_) => {
                let mend =
                    "build it where libibverbs' headers are (scripts/install-deps rdma, scripts/build)";
                return Err(absent("RDMA", mend));
            }
        })
    }

    /// All of `buffer`, for reading and writing or only for reading; with RDMA peers may do the same.
    #[allow(unused_variables, reason = "without the features no device writes")]
    fn register(&self, buffer: &HostBuffer, writing: bool) -> Result<Made> {
        Ok(match self {
            // It writes nothing.
            Maker::Mlock(mlock) => Made::Mlock(buffer.register(mlock, .., Access::READ)?),
            #[cfg(feature = "cuda")]
            Maker::Cuda(cuda) => {
                let access = if writing { Access::WRITE } else { Access::READ };
                Made::Cuda(buffer.register(cuda, .., access)?)
            }
            #[cfg(feature = "rdma")]
            Maker::Rdma(verbs) => {
                let writing = if writing { Access::REMOTE_WRITE } else { Access::READ };
                Made::Rdma(buffer.register(verbs, .., writing | Access::REMOTE_READ)?)
            }
        })
    }
}

impl Made {
    fn end(self) -> Result<()> {
        match self {
            Made::Mlock(registration) => registration.deregister(),
            #[cfg(feature = "cuda")]
            Made::Cuda(registration) => registration.deregister(),
            #[cfg(feature = "rdma")]
            Made::Rdma(registration) => registration.deregister(),
        }
    }

    /// One description for each part that the device takes as one.
    fn describe(&self) -> Vec<Described> {
        let whole = |span: Span, access: Access| Described {
            address: span.start() as *mut _,
            length: span.len(),
            writable: i32::from(access.writes()),
            ..Described::default()
        };
        match self {
            Made::Mlock(registration) => {
                vec![Described { writable: 0, ..whole(registration.span(), registration.access()) }]
            }
            #[cfg(feature = "cuda")]
            Made::Cuda(registration) => {
                let chunks = registration.handle().chunks().iter();
                let part = |chunk: &hostbuf::register::CudaChunk| Described {
                    device_address: chunk.device,
                    ..whole(chunk.host, registration.access())
                };
                chunks.map(part).collect()
            }
            #[cfg(feature = "rdma")]
            Made::Rdma(registration) => {
                let handle = registration.handle();
                vec![Described {
                    local_key: handle.lkey(),
                    remote_key: handle.rkey(),
                    region: handle.as_ptr().as_ptr().cast(),
                    ..whole(registration.span(), registration.access())
                }]
            }
        }
    }
}

/// Registers every buffer with every device that is there.
///
/// # Errors
/// The device's; or that there is none, unless it may be missing.
pub(crate) fn register(buffers: &[HostBuffer], devices: &Devices) -> Result<()> {
    let mut held = held();
    for device in &devices.0 {
        match Maker::open(&device.kind) {
            Ok((maker, name)) => held.makers.push((maker, CString::new(name).unwrap_or_default())),
            Err(Error::Unsupported { .. } | Error::Invalid { .. }) if device.optional => {}
            Err(error) => return Err(with_advice(error, &device.kind)),
        }
    }
    for buffer in buffers {
        let writing = buffer.fill_state()? != Fill::Frozen;
        for maker in 0..held.makers.len() {
            let made = held.makers[maker].0.register(buffer, writing)?;
            held.pairs.push(Pair { buffer: buffer.clone(), maker, made: Some(made) });
        }
    }
    Ok(())
}

/// What else can be done about a device that is not there.
fn with_advice(error: Error, kind: &Kind) -> Error {
    let what = format!("--register {kind}");
    let why = match error {
        Error::Unsupported { why, .. } => why,
        other => other.to_string(),
    };
    Error::Unsupported {
        what,
        why: format!("{why}. --register '{kind}?' goes on without it; hostbuf doctor says more"),
    }
}

/// Ends the registrations of all buffers in this range. Whether all have ended.
pub(crate) fn end(range: Span) -> bool {
    let mut held = held();
    let mut well = true;
    for pair in held.pairs.iter_mut().filter(|pair| span_of(&pair.buffer).overlaps(range)) {
        well &= pair.made.take().is_none_or(|made| made.end().is_ok());
    }
    well
}

/// Makes those again that [`end`] has ended, for reading alone. Why some could not be made.
pub(crate) fn again(range: Span) -> Vec<String> {
    let mut held = held();
    let Held { makers, pairs } = &mut *held;
    let mut failures = Vec::new();
    for pair in pairs.iter_mut().filter(|pair| pair.made.is_none() && span_of(&pair.buffer).overlaps(range)) {
        match makers[pair.maker].0.register(&pair.buffer, false) {
            Ok(made) => pair.made = Some(made),
            Err(error) => {
                let (name, kind) = (pair.buffer.name(), makers[pair.maker].1.to_string_lossy());
                failures.push(format!(
                    "buffer \"{name}\" is frozen, and no longer registered with {kind}: {error}"
                ));
            }
        }
    }
    failures
}

/// Registration number `index`, as the program is told.
pub(crate) fn describe(index: usize) -> Option<Described> {
    let held = held();
    let parts = held.pairs.iter().flat_map(|pair| {
        let (maker, name) = &held.makers[pair.maker];
        let (context, domain) = match maker {
            #[cfg(feature = "rdma")]
            Maker::Rdma(verbs) => {
                (verbs.context().as_ptr().cast(), verbs.protection_domain().as_ptr().cast())
            }
            _ => (null_mut(), null_mut()),
        };
        let made = pair.made.iter().flat_map(Made::describe);
        // The name's text stays where it is: makers are never dropped.
        made.map(move |part| Described { device: name.as_ptr(), context, protection_domain: domain, ..part })
    });
    parts.skip(index).take(1).last()
}

fn span_of(buffer: &HostBuffer) -> Span {
    Span::new(buffer.as_ptr().as_ptr() as usize, buffer.len()).expect("a buffer has bytes")
}
