//! Connections, made when they are wanted: by a letter, its answer, and a queue pair on both sides.
//!
//! ```text
//!   asks:     new pair ── Ask(its end) ──>          asked:  new pair, joined to that end
//!             joined to the other end <── Answer(its end) ──
//! ```
//!
//! Letters may be lost: who asks asks again, with the same attempt, and gets the same answer. Each side asks for what it
//! sends; so two hosts that send to each other have two pairs each, and nobody has to decide who asks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Failure, Result};
use crate::rdma::connect::connect_message::{Letter, Matter};
use crate::rdma::options::Options;
use crate::rdma::verbs::completion_queue::Completions;
use crate::rdma::verbs::datagram::Mail;
use crate::rdma::verbs::port::Port;
use crate::rdma::verbs::queue_pair::{End, Pair};
use crate::rdma::verbs::shared_receive_queue::Receives;
use crate::register::Verbs;

/// When a question is asked again for the first time; then each time after twice as long, up to the last.
const AGAIN: Duration = Duration::from_millis(50);
const AGAIN_AT_MOST: Duration = Duration::from_secs(1);

/// How another host's mail is addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) port: [u8; 16],
    pub(crate) pair: u32,
}

/// See the [module](self).
pub(crate) struct Links {
    fabric: u64,
    own: u32,
    hosts: Vec<Address>,
    // Pairs before what they use.
    asked: Vec<Asked>,
    accepted: Mutex<HashMap<u32, Accepted>>,
    answers: Mutex<HashMap<u64, Option<Matter>>>,
    answered: Condvar,
    attempts: AtomicU64,
    mail: Mail,
    sends: Arc<Completions>,
    receives: Arc<Receives>,
    port: Port,
    options: Options,
    verbs: Arc<Verbs>,
}

/// The connection that this host asks another one for.
#[derive(Default)]
struct Asked {
    /// Held for a moment only, never while a connection is made.
    state: Mutex<(State, Attempts)>,
    changed: Condvar,
}

#[derive(Default)]
enum State {
    #[default]
    Nothing,
    /// Somebody makes one.
    Connecting,
    Up(Arc<Pair>),
}

/// What came of making one.
enum Ended {
    Up(Arc<Pair>),
    Failed(Failure),
    /// Whoever made it had no more time.
    GivenUp,
}

/// How often making it has failed, and how the last time.
#[derive(Clone, Copy, Default)]
struct Attempts {
    failed: u64,
    last: Option<Failure>,
}

/// A pair that another host asked for.
struct Accepted {
    attempt: u64,
    end: End,
    _pair: Pair,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a fabric has of its device.
pub(crate) struct Parts {
    pub(crate) verbs: Arc<Verbs>,
    pub(crate) port: Port,
    pub(crate) mail: Mail,
    pub(crate) sends: Arc<Completions>,
    pub(crate) receives: Arc<Receives>,
}

impl Links {
    /// Among `hosts`, of which this is number `own`, in the fabric of this number.
    pub(crate) fn new(parts: Parts, fabric: u64, own: usize, hosts: Vec<Address>, options: Options) -> Links {
        let Parts { verbs, port, mail, sends, receives } = parts;
        Links {
            fabric,
            own: own as u32,
            asked: hosts.iter().map(|_| Asked::default()).collect(),
            hosts,
            accepted: Mutex::new(HashMap::new()),
            answers: Mutex::new(HashMap::new()),
            answered: Condvar::new(),
            // A process that was started again in the place of another begins with greater numbers.
            attempts: AtomicU64::new(now()),
            mail,
            sends,
            receives,
            port,
            options,
            verbs,
        }
    }

    pub(crate) fn mail(&self) -> &Mail {
        &self.mail
    }

    /// How many connections there are, by whichever side they were asked for.
    pub(crate) fn count(&self) -> usize {
        let up = |asked: &&Asked| matches!(held(&asked.state).0, State::Up(_));
        self.asked.iter().filter(up).count() + held(&self.accepted).len()
    }

    pub(crate) fn receives(&self) -> &Receives {
        &self.receives
    }

    /// The connection to `host`, made now if there is none. It is waited for until then, and never longer than the option says.
    ///
    /// # Errors
    /// [`Error::Peer`] when the host does not answer in time, or refuses; [`Error::Os`].
    pub(crate) fn to(&self, host: usize, until: Option<Instant>) -> Result<Arc<Pair>> {
        let asked = &self.asked[host];
        let mut state = held(&asked.state);
        let before = state.1.failed;
        loop {
            match &state.0 {
                State::Up(pair) => return Ok(pair.clone()),
                State::Nothing => break,
                State::Connecting => {
                    let left = until.map_or(AGAIN_AT_MOST, |u| u.saturating_duration_since(Instant::now()));
                    if left.is_zero() {
                        return Err(self.failed(host, Failure::Timeout));
                    }
                    let waited = asked.changed.wait_timeout(state, left.min(AGAIN_AT_MOST));
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                    // What came of it is the answer for all who waited.
                    if state.1.failed != before {
                        return Err(self.failed(host, state.1.last.unwrap_or(Failure::Timeout)));
                    }
                }
            }
        }
        state.0 = State::Connecting;
        drop(state);
        let connecting = Connecting(asked);
        let own = Instant::now() + self.options.connect;
        let pair = self.ask(host, until.map_or(own, |until| until.min(own)));
        std::mem::forget(connecting);
        asked.end(match &pair {
            Ok(pair) => Ended::Up(pair.clone()),
            Err(error) => Ended::by(error, until, own),
        });
        pair
    }

    /// Forgets the connection to `host`, if it is this one: the next request makes a new one. A request that has failed has
    /// brought the pair into the state in which the device flushes all others.
    pub(crate) fn broken(&self, host: usize, pair: &Arc<Pair>) {
        let mut state = held(&self.asked[host].state);
        if matches!(&state.0, State::Up(current) if Arc::ptr_eq(current, pair)) {
            let pair = std::mem::take(&mut state.0);
            // Its end is a system call.
            drop(state);
            drop(pair);
        }
    }

    fn own_end(&self, pair: &Pair, attempt: u64) -> End {
        // Packets of an earlier connection shall not fit.
        let sequence = (attempt.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u32;
        End { address: self.port.address, pair: pair.number(), sequence, mtu: self.port.mtu }
    }

    fn ask(&self, host: usize, until: Instant) -> Result<Arc<Pair>> {
        let depth = self.options.depth;
        let pair = Pair::reliable(&self.verbs, &self.sends, &self.receives, depth)?;
        let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
        let own = self.own_end(&pair, attempt);
        let letter = Letter { fabric: self.fabric, from: self.own, attempt, matter: Matter::Ask(own) };
        held(&self.answers).insert(attempt, None);
        let answer = self.answer(host, &letter, until);
        held(&self.answers).remove(&attempt);
        match answer? {
            Matter::Answer(other) => {
                pair.join(&self.port, own, other, &self.options)?;
                Ok(Arc::new(pair))
            }
            _ => Err(self.failed(host, Failure::Refused)),
        }
    }

    fn failed(&self, host: usize, failure: Failure) -> Error {
        let address = Port::show(self.hosts[host].port);
        Error::Peer { host, doing: format!("connecting to {address}"), failure }
    }

    fn answer(&self, host: usize, letter: &Letter, until: Instant) -> Result<Matter> {
        let mut pause = AGAIN;
        loop {
            let Address { port, pair } = self.hosts[host];
            self.mail.send(port, pair, letter)?;
            let again = (Instant::now() + pause).min(until);
            let mut answers = held(&self.answers);
            loop {
                if let Some(Some(matter)) = answers.get(&letter.attempt) {
                    return Ok(*matter);
                }
                let left = again.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                answers = self.answered.wait_timeout(answers, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            drop(answers);
            if Instant::now() >= until {
                return Err(self.failed(host, Failure::Timeout));
            }
            pause = (2 * pause).min(AGAIN_AT_MOST);
        }
    }

    /// Reads what has come, and answers.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn read_mail(&self) -> Result<()> {
        let mut letters = Vec::new();
        self.mail.read(|letter| letters.push(letter))?;
        for letter in letters {
            let Some(from) = sender(&self.hosts, self.fabric, &letter) else { continue };
            match letter.matter {
                Matter::Ask(end) => {
                    let matter = match self.accept(&letter, end) {
                        Ok(Some(own)) => Matter::Answer(own),
                        Ok(None) => continue,
                        Err(error) => {
                            tracing::warn!(host = letter.from, %error, "a connection could not be accepted");
                            Matter::Refuse
                        }
                    };
                    let answer = Letter { from: self.own, matter, ..letter };
                    // Who cannot be reached asks again, or has gone; the others are answered all the same.
                    if let Err(error) = self.mail.send(from.port, from.pair, &answer) {
                        tracing::warn!(host = letter.from, %error, "a letter could not be answered");
                    }
                }
                matter => {
                    if let Some(place) = held(&self.answers).get_mut(&letter.attempt) {
                        *place = Some(matter);
                        self.answered.notify_all();
                    }
                }
            }
        }
        Ok(())
    }

    /// A pair for whoever asked; `None` for an old letter.
    fn accept(&self, letter: &Letter, other: End) -> Result<Option<End>> {
        let mut accepted = held(&self.accepted);
        if let Some(before) = accepted.get(&letter.from) {
            if before.attempt == letter.attempt {
                return Ok(Some(before.end));
            }
            if before.attempt > letter.attempt {
                return Ok(None);
            }
        }
        let pair = Pair::reliable(&self.verbs, &self.sends, &self.receives, 1)?;
        let end = self.own_end(&pair, letter.attempt.rotate_left(32));
        pair.join(&self.port, end, other, &self.options)?;
        // The one before, if there was one, has lost its other end.
        accepted.insert(letter.from, Accepted { attempt: letter.attempt, end, _pair: pair });
        Ok(Some(end))
    }
}

impl Asked {
    fn end(&self, how: Ended) {
        let mut state = held(&self.state);
        match how {
            Ended::Up(pair) => state.0 = State::Up(pair),
            Ended::GivenUp => state.0 = State::Nothing,
            Ended::Failed(failure) => {
                state.0 = State::Nothing;
                state.1 = Attempts { failed: state.1.failed + 1, last: Some(failure) };
            }
        }
        drop(state);
        self.changed.notify_all();
    }
}

impl Ended {
    /// Classifies `error` for the threads that wait for the same connection. The thread that made it had time until `until`, and
    /// the option allows until `own`.
    fn by(error: &Error, until: Option<Instant>, own: Instant) -> Ended {
        match error {
            // Threads that have more time try it themselves.
            Error::Peer { failure: Failure::Timeout, .. } if until.is_some_and(|until| until < own) => {
                Ended::GivenUp
            }
            Error::Peer { failure, .. } => Ended::Failed(*failure),
            _ => Ended::Failed(Failure::Timeout),
        }
    }
}

/// Returns the host of `hosts` that has written `letter`; `None` for nonsense, and for a letter of another job on the same network.
fn sender<'h>(hosts: &'h [Address], fabric: u64, letter: &Letter) -> Option<&'h Address> {
    let from = hosts.get(letter.from as usize).filter(|_| letter.fabric == fabric)?;
    match letter.matter {
        // A pair is joined to nobody but the host itself.
        Matter::Ask(end) if end.address != from.port => None,
        _ => Some(from),
    }
}

/// A connection is being made; those who wait for it are told also when that panics.
struct Connecting<'a>(&'a Asked);

impl Drop for Connecting<'_> {
    fn drop(&mut self) {
        self.0.end(Ended::Failed(Failure::Timeout));
    }
}

/// Nanoseconds of the wall clock.
fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_has_a_sender_only_in_its_fabric_and_asks_only_for_itself() {
        let hosts = [1u8, 2].map(|n| Address { port: [n; 16], pair: n.into() });
        let end = |n| End { address: [n; 16], pair: 9, sequence: 0, mtu: 3 };
        let ask = Letter { fabric: 7, from: 1, attempt: 0, matter: Matter::Ask(end(2)) };
        assert_eq!(sender(&hosts, 7, &ask), Some(&hosts[1]));
        assert_eq!(sender(&hosts, 8, &ask), None);
        assert_eq!(sender(&hosts, 7, &Letter { from: 2, ..ask }), None);
        // Whoever asks is to be joined to an end of its own.
        assert_eq!(sender(&hosts, 7, &Letter { matter: Matter::Ask(end(1)), ..ask }), None);
        assert_eq!(sender(&hosts, 7, &Letter { matter: Matter::Refuse, ..ask }), Some(&hosts[1]));
    }

    #[test]
    fn a_caller_with_less_time_than_the_option_reports_no_failure() {
        let own = Instant::now();
        let second = Duration::from_secs(1);
        let failed = |failure, until| {
            let error = Error::Peer { host: 0, doing: "connecting".into(), failure };
            match Ended::by(&error, until, own) {
                Ended::Failed(failure) => Some(failure),
                Ended::GivenUp => None,
                Ended::Up(_) => unreachable!(),
            }
        };
        let timeout = Failure::Timeout;
        assert_eq!(failed(timeout, Some(own - second)), None);
        for until in [None, Some(own), Some(own + second)] {
            assert_eq!(failed(timeout, until), Some(timeout));
        }
        assert_eq!(failed(Failure::Refused, Some(own - second)), Some(Failure::Refused));
    }
}
