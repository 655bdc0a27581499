//! perftest's `ib_write_bw` between the two hosts: a server on the second rank, a client on the
//! first. It polls for completions; it can wait for events only with other operations.

use std::error::Error;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hostbuf::job::{Collective, Mpi};

const PORT: u16 = 18515;

/// The parameters: `count` writes of `size` bytes, at most `depth` of them in flight.
pub(crate) struct Perftest {
    pub(crate) size: usize,
    pub(crate) count: usize,
    pub(crate) depth: usize,
}

impl Perftest {
    /// Runs perftest, and returns its rate on the first rank in bytes per second.
    pub(crate) fn run(&self, group: &Mpi) -> Result<f64, Box<dyn Error>> {
        let all = std::env::var("RDMA_VM_ADDRESSES").unwrap_or_default();
        let address =
            all.split(' ').nth(1).ok_or("the second host's address is not known (RDMA_VM_ADDRESSES)")?;
        let server = if group.rank() == 1 { Some(self.serve()?) } else { None };
        group.barrier()?;
        let rate = if group.rank() == 0 { self.ask(address) } else { Ok(0.0) };
        if let Some(mut server) = server {
            let status = server.wait()?;
            if !status.success() {
                return Err(format!("the server of ib_write_bw: {status}").into());
            }
        }
        group.barrier()?;
        rate
    }

    fn command(&self) -> Command {
        let mut command = Command::new("ib_write_bw");
        command.args(["-d", "rxe0", "-x", "1", "-F", "-N", "-p", &PORT.to_string()]);
        command.args([
            "-s",
            &self.size.to_string(),
            "-n",
            &self.count.to_string(),
            "-t",
            &self.depth.to_string(),
        ]);
        command
    }

    /// Starts a server, and returns once it listens.
    fn serve(&self) -> Result<std::process::Child, Box<dyn Error>> {
        let until = Instant::now() + Duration::from_secs(20);
        let mut server = self.command().stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        // The port is in use as soon as the server listens.
        while TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).is_ok() {
            if Instant::now() > until || server.try_wait()?.is_some() {
                let _ = server.kill();
                return Err("ib_write_bw does not listen".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    fn ask(&self, address: &str) -> Result<f64, Box<dyn Error>> {
        let output = self.command().arg(address).stdin(Stdio::null()).output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        // The line of results: bytes, iterations, peak rate, average rate in MiB per second, and
        // message rate.
        let columns = said.lines().find_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            (words.first() == Some(&&*self.size.to_string()) && words.len() >= 4).then(|| words[3].to_owned())
        });
        let rate = columns.and_then(|rate| rate.parse::<f64>().ok()).filter(|_| output.status.success());
        rate.map(|rate| rate * f64::from(1 << 20)).ok_or_else(|| {
            let why = String::from_utf8_lossy(&output.stderr);
            io::Error::other(format!("ib_write_bw: {}: {said}{why}", output.status)).into()
        })
    }
}
