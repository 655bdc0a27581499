//! The threads that make the requests of a client.

use std::ops::Range;
use std::sync::Arc;

use super::easy_threads::EasyThreads;
use super::http_client::HttpClients;
use super::reactors::Reactors;
use super::remote_error::{RemoteError, RemoteProblem};
use super::remote_object::RemoteObject;
use super::remote_options::RequestMode;

/// The largest number of threads, and of requests in flight in each.
const MOST: usize = 4096;

/// The threads that make the requests of a client.
pub(super) struct RequestThreads {
    /// Also opens objects if there are reactors.
    pub(super) easy: EasyThreads,
    reactors: Option<Reactors>,
}

impl RequestThreads {
    pub(super) fn new(
        mode: RequestMode,
        clients: &Arc<HttpClients>,
    ) -> Result<RequestThreads, RemoteProblem> {
        let reactors = match mode {
            RequestMode::Easy => None,
            RequestMode::Reactors { threads: 0, .. } | RequestMode::Reactors { requests: 0, .. } => {
                let why =
                    format!("mode: {mode:?} makes no request: expected at least 1 thread and 1 request");
                return Err(RemoteProblem::Option { why });
            }
            RequestMode::Reactors { threads, requests } if threads.max(requests) > MOST => {
                let why = format!("mode: {mode:?}: expected at most {MOST} threads and {MOST} requests");
                return Err(RemoteProblem::Option { why });
            }
            RequestMode::Reactors { threads, requests } => Some(Reactors::new(threads, requests, clients)?),
        };
        Ok(RequestThreads { easy: EasyThreads::new(clients.clone()), reactors })
    }

    /// Reads a range of an object, and waits for it.
    pub(super) fn read(
        &self,
        object: &Arc<RemoteObject>,
        range: Range<u64>,
        into: &mut [u8],
    ) -> Result<(), RemoteError> {
        match &self.reactors {
            None => self.easy.read(object, range, into),
            Some(reactors) => reactors.read(object, range, into),
        }
    }
}
