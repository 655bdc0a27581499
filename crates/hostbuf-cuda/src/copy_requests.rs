//! The memory of the requests of deferred copies.

#![allow(unsafe_code, reason = "the memory is read by kernels, and never freed")]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};

use hostbuf_os::forking::hold_around_fork;
use hostbuf_os::poison::IgnorePoison;
use nix::sys::mman::{MmapAdvise, madvise};

use crate::copy_batch::BatchedCopy;
use crate::cuda_context::CudaContext;
use crate::cuda_error::CudaError;
use crate::host_registration::HostAccess;

/// The number of words of a page.
const PAGE_WORDS: usize = 4096 / size_of::<AtomicU64>();
/// The number of words of a request: the address to which the bytes are copied, the address from
/// which they are copied, their number, and 1 once the request has been made.
const REQUEST_WORDS: usize = 4;
/// The word for which the stream waits after all requests.
const END: usize = 0;
/// The word that has the number of copies that have ended.
const COPIED: usize = 1;

#[repr(C, align(4096))]
struct WordPage([AtomicU64; PAGE_WORDS]);

/// The memory of the requests of one `DeferredCopies`. It stays until the process ends, since a
/// stream may read it after the `DeferredCopies` was dropped. It is reused only after the stream
/// has executed the end.
pub(crate) struct CopyRequests {
    words: &'static [WordPage],
    device_address: u64,
    is_free: AtomicBool,
    /// The error of the context that the stream has reported, or 0.
    error: AtomicU32,
}

/// The memory of all contexts. It keeps its contexts.
static REQUESTS: Mutex<Vec<(CudaContext, Arc<CopyRequests>)>> = Mutex::new(Vec::new());

impl CopyRequests {
    /// Takes memory for `count` requests, none of which has been made. It is registered if there is
    /// none that can be used again.
    ///
    /// # Errors
    /// The driver's, and [`CudaError::Forked`] in a forked child.
    pub(crate) fn take(context: &CudaContext, count: u32) -> Result<Arc<CopyRequests>, CudaError> {
        // No lock of a parent is taken.
        drop(context.make_current()?);
        hold_around_fork!(REQUESTS: Vec<(CudaContext, Arc<CopyRequests>)>);
        let words = (count as usize + 1) * REQUEST_WORDS;
        let found = {
            let all = REQUESTS.lock().ignore_poison();
            let mut usable = all.iter().filter(|(known, one)| known == context && one.has_room(words));
            usable.find(|(_, one)| one.try_use()).map(|(_, one)| one.clone())
        };
        if let Some(found) = found {
            found.reset(words);
            return Ok(found);
        }
        let new = Arc::new(CopyRequests::register(context, words)?);
        REQUESTS.lock().ignore_poison().push((context.clone(), new.clone()));
        Ok(new)
    }

    /// Forgets the memory of a context, which may not be registered any more.
    pub(crate) fn discard(context: &CudaContext) {
        REQUESTS.lock().ignore_poison().retain(|(known, _)| known != context);
    }

    fn register(context: &CudaContext, words: usize) -> Result<CopyRequests, CudaError> {
        let pages: Box<[WordPage]> = (0..words.div_ceil(PAGE_WORDS))
            .map(|_| WordPage([const { AtomicU64::new(0) }; PAGE_WORDS]))
            .collect();
        let start = pages.as_ptr().addr();
        let range = start..start + size_of_val(&*pages);
        let bytes = range.len();
        let device_address = context.make_current()?.register_host(range, HostAccess::ReadWrite)?;
        // A kernel before 5.12 would give this process other pages after a fork.
        // SAFETY: whole pages that are never freed, and whose content stays.
        let _ = unsafe { madvise(NonNull::from(&*pages).cast(), bytes, MmapAdvise::MADV_DONTFORK) };
        let (is_free, error) = (AtomicBool::new(false), AtomicU32::new(0));
        Ok(CopyRequests { words: Box::leak(pages), device_address, is_free, error })
    }

    fn has_room(&self, words: usize) -> bool {
        self.words.len() * PAGE_WORDS >= words
    }

    fn try_use(&self) -> bool {
        self.is_free.swap(false, Ordering::Acquire)
    }

    fn reset(&self, words: usize) {
        (0..words).for_each(|number| self.word(number).store(0, Ordering::Relaxed));
        fence(Ordering::SeqCst);
    }

    fn word(&self, number: usize) -> &AtomicU64 {
        &self.words[number / PAGE_WORDS].0[number % PAGE_WORDS]
    }

    fn address(&self, word: usize) -> u64 {
        self.device_address + (word * size_of::<AtomicU64>()) as u64
    }

    fn first_word(request: u32) -> usize {
        (request as usize + 1) * REQUEST_WORDS
    }

    /// Makes a request.
    pub(crate) fn make(&self, request: u32, copy: BatchedCopy) {
        let first = CopyRequests::first_word(request);
        for (word, value) in [copy.to, copy.from, copy.bytes as u64].into_iter().enumerate() {
            self.word(first + word).store(value, Ordering::Relaxed);
        }
        // The stream sees the request, and the bytes that it copies, once it sees this.
        self.word(first + 3).store(1, Ordering::SeqCst);
    }

    /// Lets the stream execute the end.
    pub(crate) fn end(&self) {
        self.word(END).store(1, Ordering::SeqCst);
    }

    /// Returns the number of copies that have ended.
    pub(crate) fn copied(&self) -> u32 {
        self.word(COPIED).load(Ordering::Acquire) as u32
    }

    /// Returns the address that the GPU has for a request.
    pub(crate) fn request_address(&self, request: u32) -> u64 {
        self.address(CopyRequests::first_word(request))
    }

    /// Returns the address of the 32 bits that become 1 once a request has been made.
    pub(crate) fn made_address(&self, request: u32) -> u64 {
        self.address(CopyRequests::first_word(request) + 3)
    }

    /// Returns the address of the 32 bits that become 1 when the stream may execute the end.
    pub(crate) fn end_address(&self) -> u64 {
        self.address(END)
    }

    /// Returns the address of the 32 bits that have the number of copies that have ended.
    pub(crate) fn copied_address(&self) -> u64 {
        self.address(COPIED)
    }

    /// States that the stream has executed the end. Keeps the error of its context, or makes the
    /// memory free. It calls no driver.
    pub(crate) fn finish(&self, error: Option<u32>) {
        match error {
            Some(code) => self.error.store(code, Ordering::Release),
            None => self.is_free.store(true, Ordering::Release),
        }
    }

    /// Returns the error of the context that the stream has reported.
    pub(crate) fn error(&self) -> Option<u32> {
        Some(self.error.load(Ordering::Acquire)).filter(|&code| code != 0)
    }
}
