//! The ranks of a job in the election of an address.

use hostbuf::agree::{self, Electorate, RangeRequest, elect};
use hostbuf::job::{Collective, Reduce};
use hostbuf::{Error, ErrorClass, JobError, Result};
use hostbuf_protocol::candidates::Ballot;

use super::orders::{Answer, Event, Order, Question, ServerHandle};
use super::rank_refusal::RankRefusal;
use super::stop::{Stop, event};
use super::timed_error::TimedError;

/// An address on which all ranks have agreed.
pub(super) struct Elected {
    pub(super) address: u64,
    /// The number of ballots and searches.
    pub(super) rounds: u32,
}

/// The ranks of all hosts: those of this host through the server, the others through their agents.
pub(super) struct JobElectorate<'a> {
    group: &'a dyn Collective,
    server: &'a ServerHandle,
    /// The number of ranks on this host.
    ranks: usize,
    refusal: Option<RankRefusal>,
    stop: Option<Stop>,
}

impl<'a> JobElectorate<'a> {
    /// Makes the electorate of a job with `ranks` ranks on this host.
    pub(super) fn new(
        group: &'a dyn Collective,
        server: &'a ServerHandle,
        ranks: usize,
    ) -> JobElectorate<'a> {
        JobElectorate { group, server, ranks, refusal: None, stop: None }
    }

    /// Finds an address for a range that all ranks hold. Collective.
    ///
    /// # Errors
    /// The place where the phases stop: a lost rank, or a range that is free nowhere.
    pub(super) fn elect(mut self, request: RangeRequest) -> std::result::Result<Elected, Stop> {
        let outcome = elect(&mut self, request);
        let outcome = outcome.map_err(|error| self.stop.take().unwrap_or_else(|| error.into()))?;
        match outcome.address {
            Some(address) => Ok(Elected { address: address as u64, rounds: outcome.rounds }),
            None => Err(self.disagreement()),
        }
    }

    /// Returns the error of an election without a winner. Collective.
    fn disagreement(self) -> Stop {
        let is_final = self.refusal.as_ref().is_some_and(|refusal| refusal.is_final);
        let mut words = [u64::from(is_final)];
        if let Err(error) = self.group.all_reduce(&mut words, Reduce::Max) {
            return error.into();
        }
        // The other refusals are not the cause if a rank can hold no address at all.
        let refusal = self.refusal.filter(|refusal| refusal.is_final || words[0] == 0);
        agree::disagreement(self.group, refusal.map(|refusal| (refusal.rank, refusal.why))).into()
    }

    /// Asks the ranks of this host.
    fn ask(&mut self, question: Question) -> std::result::Result<Answer, TimedError> {
        if self.ranks == 0 {
            return Ok(Answer { mask: u64::MAX, hole: 0, refusal: None });
        }
        self.server.order(Order::Ask(question));
        match event(self.server)? {
            Event::Answered(answer) => Ok(answer),
            _ => Err(JobError::new(ErrorClass::Attach, "the ranks sent an unexpected answer").into()),
        }
    }

    /// Records where the phases stop, and returns an error for [`elect`].
    fn stopping(&mut self, stop: Stop) -> Error {
        self.stop = Some(stop);
        Error::Collective { operation: "elect", why: "a participant is lost".into() }
    }
}

impl Electorate for JobElectorate<'_> {
    fn vote(&mut self, candidates: &Ballot, length: usize) -> Result<u64> {
        let answer = self.ask(Question::Ballot(*candidates, length));
        let mask = answer.as_ref().map_or(0, |a| a.mask);
        let mut words = [mask, if answer.is_ok() { u64::MAX } else { 0 }];
        self.group.all_reduce(&mut words, Reduce::And)?;
        match answer {
            Err(error) => Err(self.stopping(Stop::Here(error))),
            Ok(_) if words[1] == 0 => Err(self.stopping(Stop::There)),
            Ok(answer) => {
                self.refusal = RankRefusal::cause(self.refusal.take(), answer.refusal);
                Ok(words[0])
            }
        }
    }

    fn hole(&mut self, from: usize, request: RangeRequest) -> Result<Option<usize>> {
        let RangeRequest { length, align, .. } = request;
        let answer = self.ask(Question::Search { length, from, align });
        // A host without ranks has no occupied addresses.
        let hole = answer.as_ref().map_or(0, |a| if self.ranks == 0 { from as u64 } else { a.hole });
        let mut words = [hole, u64::from(answer.is_err())];
        self.group.all_reduce(&mut words, Reduce::Max)?;
        match answer {
            Err(error) => Err(self.stopping(Stop::Here(error))),
            Ok(_) if words[1] == 1 => Err(self.stopping(Stop::There)),
            Ok(answer) => {
                self.refusal = RankRefusal::cause(self.refusal.take(), answer.refusal);
                Ok((words[0] != u64::MAX).then_some(words[0] as usize))
            }
        }
    }
}
