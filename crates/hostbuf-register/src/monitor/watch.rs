//! Starts to watch memory: selects the mappings and the userfaultfd, and waits until the watching
//! is reliable.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hostbuf_os::poison::IgnorePoison;

use super::change_sequence::ChangeSequence;
use super::descriptor_set::DescriptorSet;
use super::mappings::WatchRefusal;
use super::monitor_shared::{MonitorShared, WatchedPiece};
use super::recent_discards::{DiscardState, GAP};
use super::settle::{STARVED_TIMEOUT, Unsettled};
use super::userfaultfd;
use super::watched::{Unwatched, Watched};
use crate::span::Span;

/// The number of times that a changing mapping is looked up again.
const UNCLEAR: u32 = 50;
/// The time for which a request waits for a discard, before its memory is registered for the lease
/// only.
const DISCARD_TIMEOUT: Duration = GAP.saturating_mul(4);
/// The number of watched ranges from which on a new range is watched by its neighbour's descriptor,
/// so that the kernel can join the two mappings: the default limit is 65 530 mappings per process.
const CROWDED: usize = 1 << 13;

impl MonitorShared {
    /// Watches the whole mappings that contain `span`, and waits until earlier changes there have
    /// been applied.
    pub(super) fn watch(&self, span: Span) -> Result<Watched, Unwatched> {
        let begun = Instant::now();
        let timeout = 2 * STARVED_TIMEOUT + self.delays.requests.get();
        let mut unclear = 0;
        // An unmapping thread continues when its event is read, not when it is applied. So the
        // address may belong to another mapping than the recorded one, and a record counts only
        // after its descriptor has settled.
        let mut settled = DescriptorSet::EMPTY;
        while begun.elapsed() < timeout {
            let looked = Instant::now();
            match self.settle(settled) {
                Ok(()) => {}
                Err(Unsettled::Unknown) => return Err(Unwatched::Unproven),
                Err(Unsettled::Busy) => break,
            }
            let (found, pages, request) = {
                let mut ranges = self.ranges.lock().ignore_poison();
                ranges.quiet(settled, looked);
                let found = ranges.around(span);
                (found, ranges.pages(span), if found.is_none() { ranges.begin(span) } else { None })
            };
            let Some(found) = found else {
                match request {
                    None => std::thread::yield_now(),
                    Some(request) => match self.begin_watching(span, request) {
                        Ok(()) => {}
                        Err(WatchRefusal::Certain(why)) => return Err(why),
                        // The mappings have changed during the look-up.
                        Err(WatchRefusal::Retry) => {
                            unclear += 1;
                            if unclear > UNCLEAR {
                                return Err(Unwatched::Memory);
                            }
                        }
                    },
                }
                continue;
            };
            if !settled.contains(found.descriptors) {
                settled = settled.with(found.descriptors);
                continue;
            }
            let going = matches!(pages, DiscardState::Going(_) | DiscardState::Gap(_));
            if going && begun.elapsed() > DISCARD_TIMEOUT {
                return Err(Unwatched::Busy);
            }
            match pages {
                DiscardState::Settled => {}
                DiscardState::Going(descriptors) => {
                    settled = settled.with(descriptors);
                    continue;
                }
                DiscardState::Gap(left) => {
                    std::thread::sleep(left);
                    continue;
                }
                DiscardState::Due => {
                    let begun = Instant::now();
                    userfaultfd::wait_for_the_address_space();
                    self.ranges.lock().ignore_poison().barrier(begun);
                    continue;
                }
            }
            if self.verify(found.descriptors).is_err() {
                return Err(Unwatched::Unproven);
            }
            self.delays.requests.wait();
            let around = (!found.discarded).then_some(found.whole);
            return Ok(Watched { around, descriptors: found.descriptors });
        }
        let sound = self.sequences.in_set(self.sequences.all()).all(ChangeSequence::is_sound);
        Err(if sound { Unwatched::Busy } else { Unwatched::Unproven })
    }

    /// Begins to watch the mappings that contain `span`. Memory that other threads change all the
    /// time may be unwatched when this returns `Ok`.
    fn begin_watching(&self, span: Span, request: usize) -> Result<(), WatchRefusal> {
        let registered = self.register(span, request);
        let settled = registered.as_ref().is_ok_and(|(_, pieces)| {
            let set = pieces
                .iter()
                .fold(DescriptorSet::EMPTY, |set, &(_, number)| set.with(DescriptorSet::of(number)));
            self.settle(set).is_ok()
        });
        let mut ranges = self.ranges.lock().ignore_poison();
        let unchanged = ranges.end(request) && settled;
        let (_, pieces) = registered?;
        let added = unchanged && pieces.iter().all(|&(piece, number)| ranges.add(piece, number));
        drop(ranges);
        if added {
            return Ok(());
        }
        self.unwatch(&pieces);
        if unchanged { Err(WatchRefusal::Certain(Unwatched::Full)) } else { Ok(()) }
    }

    /// Registers the mappings with the kernel. The kernel does not report changes before that.
    /// After such a change the second look-up finds another mapping, or the second registration
    /// closes the hole that the change has left. A later change invalidates the request.
    fn register(&self, span: Span, request: usize) -> Result<(Span, Vec<WatchedPiece>), WatchRefusal> {
        let whole = self.mappings.watchable(span)?;
        let first = {
            let mut ranges = self.ranges.lock().ignore_poison();
            ranges.extend(request, whole);
            let known = ranges.busy.descriptor_of(whole).or_else(|| match ranges.len() >= CROWDED {
                true => ranges.beside(whole),
                false => ranges.overlapping(whole),
            });
            known.unwrap_or_else(|| {
                self.next.fetch_add(1, Ordering::Relaxed) % self.sequences.all().iter().count()
            })
        };
        let pieces = self.register_by(whole, first)?;
        // The kernel may have joined the mapping with a watched neighbour.
        let looked_again = self.mappings.watchable(span).and_then(|again| match again.contains(whole) {
            true => pieces.iter().try_for_each(|&(piece, number)| self.register_piece(piece, number)),
            false => Err(WatchRefusal::Retry),
        });
        // Another thread has mapped memory there meanwhile. Watching only a part of its mapping
        // would split it, and the thread could not move it with mremap.
        looked_again.inspect_err(|_| self.unwatch(&pieces)).map(|()| (whole, pieces))
    }

    /// Watches all of `whole` with the descriptor `first`, except for parts that another descriptor
    /// of the monitor watches already: a mapping that has moved or grown stays registered with its
    /// descriptor.
    fn register_by(&self, whole: Span, first: usize) -> Result<Vec<WatchedPiece>, WatchRefusal> {
        match self.register_piece(whole, first) {
            Ok(()) => return Ok(vec![(whole, first)]),
            Err(WatchRefusal::Certain(Unwatched::Memory)) => {}
            Err(refusal) => return Err(refusal),
        }
        let count = self.sequences.all().iter().count();
        let mut pieces = Vec::new();
        let mut result = Ok(());
        self.mappings.each_in(whole, |mapping| {
            let start = mapping.span.start().max(whole.start());
            let end = mapping.span.end().min(whole.end());
            let Ok(piece) = Span::new(start, end - start) else { return };
            let by_any = (0..count).map(|n| (first + n) % count).find_map(|number| {
                match self.register_piece(piece, number) {
                    Ok(()) => Some(Ok((piece, number))),
                    Err(WatchRefusal::Certain(Unwatched::Memory)) => None,
                    Err(refusal) => Some(Err(refusal)),
                }
            });
            match by_any {
                Some(Ok(piece)) => pieces.push(piece),
                Some(Err(refusal)) if result.is_ok() => result = Err(refusal),
                None if result.is_ok() => result = Err(WatchRefusal::Certain(Unwatched::Memory)),
                _ => {}
            }
        });
        // ProcessMappings that appeared or disappeared between two look-ups leave a hole.
        let covered = pieces.iter().map(|(piece, _)| piece.len()).sum::<usize>() == whole.len();
        match result {
            Ok(()) if covered => Ok(pieces),
            result => {
                self.unwatch(&pieces);
                Err(result.err().unwrap_or(WatchRefusal::Retry))
            }
        }
    }

    /// Registers one piece with the descriptor `number`.
    fn register_piece(&self, piece: Span, number: usize) -> Result<(), WatchRefusal> {
        self.sequences.of(number).userfault.register(piece).map_err(|e| match e.raw_os_error() {
            Some(libc::ENOMEM) => WatchRefusal::Certain(Unwatched::Full),
            // Another userfaultfd watches it: one of the monitor's or one of the program's.
            Some(libc::EBUSY) => WatchRefusal::Certain(Unwatched::Memory),
            Some(libc::EBADF | libc::ENOTTY) => {
                self.warn_of_unknown_descriptor();
                WatchRefusal::Certain(Unwatched::Unproven)
            }
            _ => WatchRefusal::Retry,
        })
    }
}
