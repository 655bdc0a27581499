//! Sends by a socket from locked pages, to a thread that stores the messages.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use hostbuf::register::Mlock;

use crate::sender::{Outcome, Sender};

pub struct Socket {
    registrar: Arc<Mlock>,
    stream: UnixStream,
    /// The slots of the messages that have arrived.
    arriving: Receiver<usize>,
    arrived: Arc<Mutex<Vec<Vec<u8>>>>,
    under_way: usize,
}

impl Socket {
    pub fn new(places: usize) -> Outcome<Socket> {
        let (stream, mut other) = UnixStream::pair()?;
        let (tell, arriving) = channel();
        let arrived = Arc::new(Mutex::new(vec![Vec::new(); places]));
        let places = arrived.clone();
        std::thread::spawn(move || {
            // Each message consists of its slot, its length, and its bytes. The thread ends with
            // the other side of the socket.
            let mut head = [0u8; 16];
            while other.read_exact(&mut head).is_ok() {
                let word = |at: usize| {
                    let bytes = head[at..at + 8].try_into().expect("eight bytes");
                    u64::from_ne_bytes(bytes) as usize
                };
                let mut places = places.lock().expect("no thread panics while it holds the lock");
                let place = &mut places[word(0)];
                place.resize(word(8), 0);
                if other.read_exact(place).is_err() || tell.send(word(0)).is_err() {
                    return;
                }
            }
        });
        Ok(Socket { registrar: Arc::new(Mlock::new()), stream, arriving, arrived, under_way: 0 })
    }
}

impl Sender for Socket {
    type Registrar = Mlock;

    fn registrar(&self) -> Arc<Mlock> {
        self.registrar.clone()
    }

    fn send(&mut self, index: usize, from: &[u8], (): &()) -> Outcome<()> {
        let mut head = [0u8; 16];
        head[..8].copy_from_slice(&index.to_ne_bytes());
        head[8..].copy_from_slice(&from.len().to_ne_bytes());
        self.stream.write_all(&head)?;
        self.stream.write_all(from)?;
        self.under_way += 1;
        Ok(())
    }

    fn finish(&mut self) -> Outcome<()> {
        for _ in 0..std::mem::take(&mut self.under_way) {
            self.arriving.recv()?;
        }
        Ok(())
    }

    fn arrived(&mut self, index: usize, _bytes: usize) -> Outcome<Vec<u8>> {
        Ok(self.arrived.lock().expect("no thread panics while it holds the lock")[index].clone())
    }
}
