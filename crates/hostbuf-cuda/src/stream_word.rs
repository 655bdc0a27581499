//! Words of host memory for which streams wait.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use hostbuf_os::forking::hold_around_fork;
use hostbuf_os::poison::IgnorePoison;

use crate::cuda_context::CudaContext;
use crate::cuda_error::CudaError;
use crate::host_registration::HostAccess;

/// The number of words of a page.
const WORDS: usize = 4096 / size_of::<AtomicU32>();

/// Words that are registered together. They stay until the process ends, since a stream may wait
/// for one of them later than its user has dropped it.
#[repr(C, align(4096))]
struct WordPage([AtomicU32; WORDS]);

/// A word without a user.
struct FreeWord {
    context: CudaContext,
    word: &'static AtomicU32,
    device_address: u64,
    /// The number of its last turn.
    turn: u32,
}

/// The words without a user, of all contexts. They keep their contexts.
static FREE_WORDS: Mutex<Vec<FreeWord>> = Mutex::new(Vec::new());
/// The number of words with a user.
static HELD_WORDS: AtomicUsize = AtomicUsize::new(0);

/// A word of host memory for which streams wait until it is dropped, by
/// [`wait_for_word`](crate::BorrowedStream::wait_for_word).
///
/// The next user of the same memory gets a greater number to wait for, so a stream that comes late
/// does not wait for it.
#[derive(Debug)]
#[must_use = "streams wait only as long as this lives"]
pub struct StreamWord {
    /// `None` once it is dropped.
    word: Option<FreeWord>,
}

impl StreamWord {
    /// Takes a word. The first call for a context registers a page of them.
    ///
    /// # Errors
    /// The driver's, and [`CudaError::Forked`] in a forked child.
    pub fn new(context: &CudaContext) -> Result<StreamWord, CudaError> {
        // No word of a parent is taken.
        drop(context.make_current()?);
        hold_around_fork!(FREE_WORDS: Vec<FreeWord>);
        let known = {
            let mut free = FREE_WORDS.lock().ignore_poison();
            let found = free.iter().rposition(|one| one.context == *context);
            found.map(|index| free.swap_remove(index))
        };
        let mut word = match known {
            Some(word) => word,
            None => new_page(context)?,
        };
        word.turn = word.turn.wrapping_add(1);
        HELD_WORDS.fetch_add(1, Ordering::SeqCst);
        Ok(StreamWord { word: Some(word) })
    }

    /// Returns whether a stream of this process may be waiting for a word.
    #[must_use]
    pub fn are_held() -> bool {
        HELD_WORDS.load(Ordering::SeqCst) > 0
    }

    /// Gives the word up, and all free ones of its context: a stream could not wait for it, since
    /// their registration may have ended with a context that was reset. No stream waits for it.
    pub fn discard(mut self) {
        let Some(word) = self.word.take() else { return };
        FREE_WORDS.lock().ignore_poison().retain(|other| other.context != word.context);
        HELD_WORDS.fetch_sub(1, Ordering::SeqCst);
    }

    pub(crate) fn device_address(&self) -> u64 {
        self.word.as_ref().map_or(0, |word| word.device_address)
    }

    /// Returns the number that the word has when it is dropped.
    pub(crate) fn turn(&self) -> u32 {
        self.word.as_ref().map_or(0, |word| word.turn)
    }
}

/// Registers a page, and returns one of its words.
fn new_page(context: &CudaContext) -> Result<FreeWord, CudaError> {
    let page = Box::new(WordPage([const { AtomicU32::new(0) }; WORDS]));
    let start = (&raw const *page).addr();
    let device =
        context.make_current()?.register_host(start..start + size_of::<WordPage>(), HostAccess::ReadWrite)?;
    let page: &'static WordPage = Box::leak(page);
    let mut words = page.0.iter().zip(0..).map(|(word, number): (_, u64)| {
        let device_address = device + number * size_of::<AtomicU32>() as u64;
        FreeWord { context: context.clone(), word, device_address, turn: 0 }
    });
    let first = words.next();
    FREE_WORDS.lock().ignore_poison().extend(words);
    Ok(first.expect("a page has words"))
}

impl std::fmt::Debug for FreeWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let FreeWord { device_address, turn, .. } = self;
        f.debug_struct("FreeWord")
            .field("device_address", device_address)
            .field("turn", turn)
            .finish_non_exhaustive()
    }
}

impl Drop for StreamWord {
    fn drop(&mut self) {
        let Some(word) = self.word.take() else { return };
        if word.context.is_inherited() {
            return;
        }
        word.word.store(word.turn, Ordering::SeqCst);
        FREE_WORDS.lock().ignore_poison().push(word);
        HELD_WORDS.fetch_sub(1, Ordering::SeqCst);
    }
}
