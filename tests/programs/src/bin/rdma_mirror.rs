//! A mirror by RDMA between two machines. `scripts/rdma-vm --hosts 2` runs `rdma_mirror` on both:
//! the second one receives, in a process that is killed and started again. It prints one line for
//! each check, `ok NAME ...` or `FAILED NAME ...`, and exits with status 1 if one failed.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use hostbuf_mirror::{MirrorError, MirrorReceiver, MirrorReceiverOptions, MirrorSender, MirrorSenderOptions};
use hostbuf_os::kernel;
use hostbuf_pool::{
    ArrayLayout, BlockHeader, ElementType, Pool, PoolMode, PoolOptions, Producer, ProducerOptions, Token,
};
use hostbuf_programs::checks::{Check, NetworkFault, Outcome, expect, kill_self, report, text};
use hostbuf_rdma::{FabricOptions, ReadDevice};

/// The ports of the receiver with RDMA, of the one without, and of the requests of the checks.
const PORT: u16 = 17180;
const TCP_PORT: u16 = 17181;
const REQUEST_PORT: u16 = 17182;
const TIMEOUT: Duration = Duration::from_secs(60);
/// The longest time for which packets are lost. A device without a read to do notices no loss.
const OUTAGE: Duration = Duration::from_secs(3);
/// Several requests of the device, the last one not whole.
const FRAME_BYTES: u64 = (5 << 20) / 2 + 4096;
const STAMP_EVERY: usize = 4096;
const FRAMES: u64 = 12;
const KILLS: u64 = 6;

fn main() {
    let variable = |name| std::env::var(name).map_err(|error| format!("{name}: {error}"));
    let well = match (std::env::args().nth(1).as_deref(), variable("RDMA_VM_HOST").as_deref()) {
        (Some("serve"), _) => serve(),
        (_, Ok("0")) => variable("RDMA_VM_ADDRESSES").and_then(|addresses| send(&addresses)),
        _ => supervise(),
    };
    if let Err(why) = &well {
        println!("FAILED setup {why}");
    }
    std::process::exit(i32::from(!matches!(well, Ok(true))));
}

/// Starts the receiver, again whenever it was killed, until it ends by itself.
fn supervise() -> Result<bool, String> {
    let own = std::env::current_exe().map_err(text)?;
    let mut kills = 0;
    loop {
        let status = Command::new(&own).arg("serve").status().map_err(text)?;
        match status.signal() {
            Some(9) => kills += 1,
            _ => {
                let served = expect(status.success(), format!("{status}")).map(|()| format!("{kills} kills"));
                return Ok(report("served", &served));
            }
        }
    }
}

/// Opens a device that gives a connection up after a short time without answers.
fn device() -> Result<ReadDevice, String> {
    let options = FabricOptions::default().ack_timeout(Duration::from_millis(60)).retries(3);
    ReadDevice::open(options).map_err(text)
}

fn pool(name: &str) -> Result<Pool, String> {
    Pool::connect(PoolOptions::new(name).mode(PoolMode::Private)).map_err(text)
}

/// Receives frames, and serves the requests of the checks: `check TOKEN NUMBER`, `kill-in
/// MICROSECONDS`, `lose-packets`, `frames`, `end`.
fn serve() -> Result<bool, String> {
    let pool = pool("there")?;
    let options = MirrorReceiverOptions::new().block_bytes(FRAME_BYTES).blocks(8).retain(4);
    let by_rdma = options.clone().rdma(device()?);
    let receiver = MirrorReceiver::listen(&pool, ("0.0.0.0", PORT), by_rdma).map_err(text)?;
    let receiver = Arc::new(receiver);
    let by_tcp = MirrorReceiver::listen(&pool, ("0.0.0.0", TCP_PORT), options).map_err(text)?;
    let listener = TcpListener::bind(("0.0.0.0", REQUEST_PORT)).map_err(text)?;
    loop {
        let (stream, _) = listener.accept().map_err(text)?;
        stream.set_nodelay(true).map_err(text)?;
        for line in BufReader::new(&stream).lines() {
            let line = line.map_err(text)?;
            // The part of a request that begins after the reply, which it could prevent.
            let mut afterwards: Option<Box<dyn FnOnce() + Send>> = None;
            let reply = match line.split(' ').collect::<Vec<_>>()[..] {
                ["check", copy, number] => check_copy(&pool, copy, number),
                ["kill-in", microseconds] => {
                    let time = Duration::from_micros(microseconds.parse().map_err(text)?);
                    afterwards = Some(Box::new(move || {
                        spin(time);
                        kill_self();
                    }));
                    Ok(String::new())
                }
                ["lose-packets"] => {
                    let receiver = receiver.clone();
                    afterwards = Some(Box::new(move || {
                        let fault = NetworkFault::new("loss 100%").expect("the machine has tc");
                        let begun = Instant::now();
                        while receiver.counters().connections > 0 && begun.elapsed() < OUTAGE {
                            thread::yield_now();
                        }
                        drop(fault);
                    }));
                    Ok(String::new())
                }
                ["frames"] => {
                    let (one, other) = (receiver.counters(), by_tcp.counters());
                    Ok(format!("{} {} {}", one.published, one.read, other.published))
                }
                ["end"] => return Ok(true),
                _ => Err(format!("no request: {line}")),
            };
            let reply = reply.map_or_else(|why| format!("error {why}"), |reply| format!("ok {reply}"));
            (&stream).write_all(format!("{reply}\n").as_bytes()).map_err(text)?;
            afterwards.map(thread::spawn);
        }
    }
}

/// Lets a part of the time pass that a frame takes, without giving up the core.
fn spin(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        thread::yield_now();
    }
}

/// Checks that the copy of frame `number` is whole.
fn check_copy(pool: &Pool, copy: &str, number: &str) -> Outcome {
    let (copy, number): (Token, u64) = (copy.parse().map_err(text)?, number.parse().map_err(text)?);
    let block = pool.acquire(&copy).map_err(text)?;
    expect(block.header().frame == number, format!("the header is of frame {}", block.header().frame))?;
    for (at, chunk) in block.as_slice().chunks(STAMP_EVERY).enumerate() {
        let stamp = u64::from_le_bytes(chunk[..8].try_into().map_err(text)?);
        expect(stamp == number, format!("frame {number} has stamp {stamp} at chunk {at}"))?;
    }
    Ok(String::new())
}

/// The state that all checks share.
struct MirrorSetup {
    /// The address of the other machine.
    there: String,
    device: ReadDevice,
    pool: Pool,
    producer: Producer,
    /// The number of the next frame.
    next: Mutex<u64>,
}

/// Runs the checks.
fn send(addresses: &str) -> Result<bool, String> {
    let checks: [Check<MirrorSetup>; 6] = [
        ("frames", frames),
        ("without-rdma-there", without_rdma_there),
        ("short-deadlines", short_deadlines),
        ("cut-stream", cut_stream),
        ("broken-queue-pair", broken_queue_pair),
        ("killed-receivers", killed_receivers),
    ];
    let pool = pool("here")?;
    // So few blocks that each is written again soon after a frame is given up.
    let options = ProducerOptions::new(FRAME_BYTES, 6).retain(1).quota(6);
    let producer = pool.producer(&options).map_err(text)?;
    let there = addresses.split(' ').nth(1).ok_or("there is one machine")?.to_owned();
    let setup = MirrorSetup { there, device: device()?, pool, producer, next: Mutex::new(1) };
    setup.request("frames")?;
    let well = checks.into_iter().all(|(name, check)| {
        let begun = Instant::now();
        let outcome = check(&setup).map(|seen| format!("{seen}; {:.1?}", begun.elapsed()));
        report(name, &outcome)
    });
    // The receiver ends without a reply. Its machine would otherwise wait until the time is over.
    let _ = setup.request("end");
    Ok(well)
}

impl MirrorSetup {
    /// Sends a request to the receiver, which may be starting, and returns the reply.
    fn request(&self, words: &str) -> Outcome {
        let until = Instant::now() + TIMEOUT;
        let stream = loop {
            match TcpStream::connect((self.there.as_str(), REQUEST_PORT)) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > until => return Err(error.to_string()),
                Err(_) => thread::yield_now(),
            }
        };
        stream.set_nodelay(true).map_err(text)?;
        stream.set_read_timeout(Some(TIMEOUT)).map_err(text)?;
        (&stream).write_all(format!("{words}\n").as_bytes()).map_err(text)?;
        let mut reply = String::new();
        BufReader::new(&stream).read_line(&mut reply).map_err(text)?;
        match reply.trim_end().split_once(' ') {
            Some(("ok", rest)) => Ok(rest.to_owned()),
            _ if reply.trim_end() == "ok" => Ok(String::new()),
            _ => Err(format!("{words}: {reply}")),
        }
    }

    fn sender_to(&self, address: (&str, u16)) -> Result<MirrorSender, String> {
        let options = MirrorSenderOptions::new().rdma(self.device.clone());
        let until = Instant::now() + TIMEOUT;
        loop {
            match MirrorSender::connect(address, options.clone()) {
                Ok(sender) => return Ok(sender),
                Err(error) if Instant::now() > until => return Err(error.to_string()),
                Err(_) => thread::yield_now(),
            }
        }
    }

    fn sender(&self) -> Result<MirrorSender, String> {
        self.sender_to((&self.there, PORT))
    }

    /// Publishes a frame with its number in every 4 KiB.
    fn publish(&self) -> Result<(u64, Token), String> {
        let mut next = self.next.lock().map_err(text)?;
        let number = *next;
        *next += 1;
        let mut block = self.producer.take_timeout(TIMEOUT).map_err(text)?;
        for chunk in block.as_mut_slice()[..FRAME_BYTES as usize].chunks_mut(STAMP_EVERY) {
            chunk[..8].copy_from_slice(&number.to_le_bytes());
        }
        let layout = ArrayLayout::contiguous(ElementType::UInt8, &[FRAME_BYTES]).map_err(text)?;
        let mut header = BlockHeader::new(layout);
        header.frame = number;
        Ok((number, block.publish_with(header).map_err(text)?))
    }

    /// Sends a frame, and has its copy checked.
    fn send(&self, sender: &MirrorSender) -> Result<(), String> {
        let (number, token) = self.publish()?;
        let copy = sender.send(&self.pool, &token, Instant::now() + TIMEOUT).map_err(text)?;
        self.request(&format!("check {copy} {number}")).map(drop)
    }
}

/// Sends frames with several on their way. From Linux 6.2 on they are read from their blocks.
fn frames(setup: &MirrorSetup) -> Outcome {
    let sender = setup.sender()?;
    let mut pending = Vec::new();
    for _ in 0..FRAMES {
        let (number, token) = setup.publish()?;
        let frame = sender.begin(&setup.pool, &token, Instant::now() + TIMEOUT).map_err(text)?;
        pending.push((number, frame));
        if pending.len() == 3 {
            for (number, frame) in pending.drain(..) {
                let copy = frame.wait().map_err(text)?;
                setup.request(&format!("check {copy} {number}"))?;
            }
        }
    }
    let counters = sender.counters();
    let expected = if kernel::version() < (6, 2) { (0, FRAMES) } else { (FRAMES, 0) };
    expect(
        (counters.read, counters.copied) == expected && (counters.streamed, counters.connections) == (0, 1),
        format!("{counters:?}"),
    )?;
    let seen = setup.request("frames")?;
    expect(seen == format!("{FRAMES} {FRAMES} 0"), format!("the receiver counts {seen}"))?;
    Ok(format!("{counters:?}"))
}

/// Sends frames to a receiver without a device, by TCP.
fn without_rdma_there(setup: &MirrorSetup) -> Outcome {
    let sender = setup.sender_to((&setup.there, TCP_PORT))?;
    (0..3).try_for_each(|_| setup.send(&sender))?;
    let counters = sender.counters();
    expect((counters.streamed, counters.read, counters.copied) == (3, 0, 0), format!("{counters:?}"))?;
    Ok(format!("{counters:?}"))
}

/// Gives frames up while they are read. Their blocks are written again at once.
fn short_deadlines(setup: &MirrorSetup) -> Outcome {
    let sender = setup.sender()?;
    setup.send(&sender)?;
    let (mut late, mut whole) = (0, 0);
    for round in 0..FRAMES {
        let (number, token) = setup.publish()?;
        let deadline = Instant::now() + Duration::from_micros(1 + round * 7000);
        match sender.send(&setup.pool, &token, deadline) {
            Ok(copy) => {
                setup.request(&format!("check {copy} {number}"))?;
                whole += 1;
            }
            Err(MirrorError::Deadline { .. } | MirrorError::Refused { .. }) => late += 1,
            Err(error) => return Err(error.to_string()),
        }
    }
    expect(late > 0, "no frame was late")?;
    setup.send(&sender)?;
    Ok(format!("{late} frames were late, {whole} were not, {:?}", sender.counters()))
}

/// Cuts the TCP connection behind the request of a frame, while the receiver reads the bytes.
fn cut_stream(setup: &MirrorSetup) -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(text)?;
    let address = listener.local_addr().map_err(text)?;
    let target = (setup.there.clone(), PORT);
    // The bytes of a hello and of two requests pass, then there is an end.
    let budgets = Arc::new(Mutex::new(vec![u64::MAX, 80 + 2 * 352]));
    let of_proxy = budgets.clone();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect((target.0.as_str(), target.1)) else { return };
            let budget = of_proxy.lock().ok().and_then(|mut budgets| budgets.pop()).unwrap_or(u64::MAX);
            let (Ok(back), Ok(forth)) = (server.try_clone(), client.try_clone()) else { return };
            thread::spawn(move || forward(&back, &forth, u64::MAX));
            thread::spawn(move || forward(&client, &server, budget));
        }
    });
    let sender = setup.sender_to(("127.0.0.1", address.port()))?;
    (0..4).try_for_each(|_| setup.send(&sender))?;
    let counters = sender.counters();
    expect(counters.connections == 2 && counters.streamed == 0, format!("{counters:?}"))?;
    Ok(format!("{counters:?}"))
}

/// Passes `budget` bytes on, and ends both streams.
fn forward(mut from: &TcpStream, mut to: &TcpStream, mut budget: u64) {
    let mut buffer = [0; 4096];
    while budget > 0 {
        let most = budget.min(4096) as usize;
        match std::io::Read::read(&mut from, &mut buffer[..most]) {
            Ok(bytes) if bytes > 0 && to.write_all(&buffer[..bytes]).is_ok() => budget -= bytes as u64,
            _ => break,
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// Loses all packets that the other machine sends until its device has given the connection up. Its
/// reads get no answers, while the requests of frames arrive by TCP. If it had read all frames when
/// the packets began to be lost, it has nothing to read before it has its answers acknowledged, and
/// the packets are lost again.
fn broken_queue_pair(setup: &MirrorSetup) -> Outcome {
    let sender = setup.sender()?;
    setup.send(&sender)?;
    let until = Instant::now() + TIMEOUT;
    let mut pending = VecDeque::new();
    let (mut sent, mut outages) = (0, 0);
    let mut lost_until = Instant::now();
    let last = loop {
        if Instant::now() >= lost_until {
            setup.request("lose-packets")?;
            outages += 1;
            lost_until = Instant::now() + OUTAGE;
        }
        // With several frames on their way there is one to read when packets begin to be lost.
        while pending.len() < 3 {
            let (number, token) = setup.publish()?;
            pending.push_back((number, sender.begin(&setup.pool, &token, until).map_err(text)?));
        }
        let Some((number, frame)) = pending.pop_front() else { continue };
        let copy = frame.wait().map_err(text)?;
        sent += 1;
        if sender.counters().connections > 1 {
            break (number, copy);
        }
    };
    setup.request(&format!("check {} {}", last.1, last.0))?;
    for (number, frame) in pending {
        let copy = frame.wait().map_err(text)?;
        setup.request(&format!("check {copy} {number}"))?;
    }
    Ok(format!("frame {sent} was read again after {outages} outages, {:?}", sender.counters()))
}

/// Kills the receiver while it reads a frame. Its successor gets the frame again.
fn killed_receivers(setup: &MirrorSetup) -> Outcome {
    let sender = setup.sender()?;
    for kill in 0..KILLS {
        setup.send(&sender)?;
        // A kill at once may prevent the reply.
        let _ = setup.request(&format!("kill-in {}", kill * 4000));
        let (number, token) = setup.publish()?;
        let mut copy = sender.send(&setup.pool, &token, Instant::now() + TIMEOUT).map_err(text)?;
        if setup.request(&format!("check {copy} {number}")).is_err() {
            // The copy of the first receiver has ended with its pool.
            let (number, token) = setup.publish()?;
            copy = sender.send(&setup.pool, &token, Instant::now() + TIMEOUT).map_err(text)?;
            setup.request(&format!("check {copy} {number}"))?;
        }
    }
    let counters = sender.counters();
    expect(counters.connections > KILLS / 2, format!("{counters:?}"))?;
    Ok(format!("{KILLS} kills, {counters:?}"))
}
