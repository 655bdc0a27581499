//! RDMA writes to memory of this process, which stands for a peer: the device performs a complete
//! send.

use std::sync::Arc;

use hostbuf::register::testing::loopback::Pair;
use hostbuf::register::testing::queue::SUCCESS;
use hostbuf::register::{Access, Registration, Span, Verbs, VerbsHandle};

use crate::sender::{Outcome, Sender};

pub struct Remote {
    // This field is dropped before the resources that it uses.
    pair: Pair<'static>,
    target: Vec<u8>,
    registration: Registration<Verbs>,
    near: Arc<Verbs>,
}

impl Remote {
    pub fn new(length: usize) -> Outcome<Remote> {
        // The device is open until the process ends: the queue pairs borrow it.
        let near: &'static Arc<Verbs> = Box::leak(Box::new(Arc::new(Verbs::open(None)?)));
        let far: &'static Arc<Verbs> = Box::leak(Box::new(Arc::new(Verbs::open(None)?)));
        let pair = Pair::new(near, far)?;
        let target = vec![0; length];
        // Only the device accesses it until all writes have ended.
        let registration = Registration::new(far, Span::of(&target)?, Access::REMOTE_WRITE)?;
        Ok(Remote { pair, target, registration, near: near.clone() })
    }
}

impl Sender for Remote {
    type Registrar = Verbs;

    fn registrar(&self) -> Arc<Verbs> {
        self.near.clone()
    }

    fn send(&mut self, index: usize, from: &[u8], handle: &VerbsHandle) -> Outcome<()> {
        let to = self.target.as_ptr() as usize + index * from.len();
        let key = self.registration.handle().rkey();
        match self.pair.write(Span::of(from)?, handle.lkey(), to, key)? {
            SUCCESS => Ok(()),
            status => Err(format!("the write of buffer {index} ended with status {status}").into()),
        }
    }

    fn finish(&mut self) -> Outcome<()> {
        // Each write is awaited.
        Ok(())
    }

    fn arrived(&mut self, index: usize, bytes: usize) -> Outcome<Vec<u8>> {
        let at = index * bytes;
        let place = std::hint::black_box(&mut self.target);
        Ok(place[at..at + bytes].to_vec())
    }
}
