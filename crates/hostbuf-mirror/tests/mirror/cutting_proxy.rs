//! A proxy that loses connections after a number of bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// The number of bytes that a connection carries to the receiver, and back from it.
pub type ByteBudget = (u64, u64);

/// The budget of a connection that is not cut.
pub const ALL: ByteBudget = (u64::MAX, u64::MAX);

/// A proxy whose first connections are cut.
pub struct CuttingProxy {
    pub address: SocketAddr,
    accepted: Arc<AtomicU64>,
}

impl CuttingProxy {
    /// Starts a proxy. Connection `i` carries the bytes of `budgets[i]`; later ones are not cut.
    /// A connection that is not `ended` stays open, and carries nothing any more.
    pub fn start(target: SocketAddr, budgets: Vec<ByteBudget>, ended: bool) -> CuttingProxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it has an address");
        let accepted = Arc::<AtomicU64>::default();
        let count = accepted.clone();
        thread::spawn(move || {
            let held = Arc::new(Mutex::new(Vec::new()));
            let mut budgets = budgets.into_iter();
            for client in listener.incoming() {
                let client = client.expect("a connection");
                count.fetch_add(1, Ordering::SeqCst);
                // The receiver may have ended.
                let Ok(server) = TcpStream::connect(target) else { continue };
                let (up, down) = budgets.next().unwrap_or(ALL);
                for (from, to, budget) in [(&client, &server, up), (&server, &client, down)] {
                    let (from, to) = (from.try_clone().expect("a copy"), to.try_clone().expect("a copy"));
                    let held = held.clone();
                    thread::spawn(move || {
                        if forward(&from, &to, budget) && !ended {
                            held.lock().expect("no panic").push((from, to));
                            return;
                        }
                        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                    });
                }
            }
        });
        CuttingProxy { address, accepted }
    }

    /// Returns the number of connections that were made.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::SeqCst)
    }
}

/// Copies `budget` bytes. Returns whether the budget was the reason to end.
fn forward(mut from: &TcpStream, mut to: &TcpStream, mut budget: u64) -> bool {
    let mut buffer = vec![0; 64 << 10];
    while budget > 0 {
        let most = budget.min(buffer.len() as u64) as usize;
        match from.read(&mut buffer[..most]) {
            Ok(bytes) if bytes > 0 && to.write_all(&buffer[..bytes]).is_ok() => budget -= bytes as u64,
            _ => return false,
        }
    }
    true
}
