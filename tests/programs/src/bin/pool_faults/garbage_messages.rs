//! Clients that send garbage to the broker, or messages that they must not send.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use hostbuf_os::socket::{self, ReceivedPacket};
use hostbuf_pool::{Pool, Producer, ProducerOptions, SegmentKey};
use hostbuf_protocol::frame::{FRAME_MAX, FrameWriter, REQUIRED};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::eventfd::EventFd;
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::broken_promise::BrokenPromise;
use crate::broker_deaths::exchange;
use crate::child::eventually;
use crate::hello_answer::{ANSWER_LIMIT, HelloAnswer, say_hello};
use crate::stamps;
use crate::test_broker::{BrokerProcess, status};
use hostbuf_programs::random::RandomInstants;

const LIMIT: u64 = 16 << 20;
/// The fields of a message: its numbers, and its text.
const NUMBERS: u16 = REQUIRED | 1;
const TEXT: u16 = REQUIRED | 2;
/// The kinds of messages of a pool.
const KINDS: std::ops::Range<u64> = 128..143;
/// The kinds that a client sends, each with the count of its numbers: Create, Mapped, Close,
/// Attach, Detached, HandBack, HandedBack, Status.
const OF_CLIENTS: [(u16, usize); 8] =
    [(129, 8), (131, 3), (133, 3), (134, 4), (137, 4), (138, 11), (139, 0), (141, 1)];
/// The number of rounds after which the broker must have closed all that it got.
const BATCH: u32 = 50;

/// Connects in each round, and sends packets of all sorts with descriptors.
pub(crate) fn send(rounds: u32, mut random: RandomInstants) -> Result<String, BrokenPromise> {
    let broker = BrokerProcess::start(LIMIT)?;
    let (camera, viewer) = (broker.connect("camera")?, broker.connect("viewer")?);
    let producer = camera.producer(&ProducerOptions::new(16 << 10, 8).retain(1));
    let producer = producer.map_err(|error| error.to_string())?;
    let mut stamp = 0;
    go_on((&producer, &viewer), &mut stamp)?;
    let token = stamps::publish(producer.take().map_err(|error| error.to_string())?, 7);
    let key = SegmentKey { pool: token.pool, number: token.segment };
    let (bytes, descriptors) = (status(&viewer)?["bytes"].clone(), broker.descriptors());
    let strangers = UnwantedDescriptors::open()?;
    let (mut ended, mut answered) = (0, 0);
    refuse_incomplete(&broker, &mut random)?;
    leave_unread(&broker, &viewer, key, &mut random)?;
    for round in 1..=rounds {
        let connection = match say_hello(broker.name(), random.number())? {
            HelloAnswer::Welcome(connection) => connection,
            HelloAnswer::Refused(why) => return Err(why),
        };
        if random.below(2) == 0 {
            let (packet, list) = (malformed(&mut random), strangers.some(&mut random));
            // The broker may end the connection meanwhile.
            let _ = socket::send(connection.as_fd(), &packet, &list);
            wait_for_end(&connection).map_err(|why| format!("{why} after {packet:?}"))?;
            ended += 1;
        } else {
            for _ in 0..=random.below(4) {
                let packet = not_allowed(&mut random, key);
                let _ = socket::send(connection.as_fd(), &packet, &strangers.some(&mut random));
            }
            // An answer, a refusal or the end: the broker has got to it in any case.
            let _ = socket::send(connection.as_fd(), &frame(141, &[1], b""), &[]);
            socket::receive(connection.as_fd(), FRAME_MAX).map_err(|error| error.to_string())?;
            answered += 1;
        }
        drop(connection);
        go_on((&producer, &viewer), &mut stamp)?;
        if round % BATCH == 0 || round == rounds {
            let mut seen = String::new();
            let back = eventually("the broker has closed what it got", || {
                let Ok(status) = status(&viewer) else { return false };
                seen = format!("{} of {descriptors} descriptors, {status}", broker.descriptors());
                status["bytes"] == bytes && broker.descriptors() == descriptors
            });
            back.map_err(|why| format!("{why}: {seen}"))?;
            drop(camera.producer(&ProducerOptions::new(4096, 2)).map_err(|error| error.to_string())?);
        }
    }
    Ok(format!("{ended} connections ended by the broker, {answered} others; {stamp} frames of clients"))
}

/// Exchanges frames of clients that keep to the protocol.
fn go_on(clients: (&Producer, &Pool), stamp: &mut u64) -> Result<(), BrokenPromise> {
    exchange(clients, None, Instant::now() + Duration::from_micros(50), stamp)
}

/// Hands back files of an earlier broker's segment without rows, and waits for the end of the
/// connection.
fn refuse_incomplete(broker: &BrokerProcess, random: &mut RandomInstants) -> Result<(), BrokenPromise> {
    let HelloAnswer::Welcome(connection) = say_hello(broker.name(), random.number())? else {
        return Err("a client is refused".into());
    };
    let sealed = |length| -> Result<OwnedFd, BrokenPromise> {
        let file =
            memfd_create("stranger", MFdFlags::MFD_ALLOW_SEALING).map_err(|errno| errno.to_string())?;
        let file = File::from(file);
        file.set_len(length).map_err(|error| error.to_string())?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).map_err(|errno| errno.to_string())?;
        Ok(file.into())
    };
    // The blocks, the table and the event.
    let files = [sealed(8192)?, sealed(8192)?, EventFd::new().map_err(|errno| errno.to_string())?.into()];
    let files = files.each_ref().map(AsRawFd::as_raw_fd);
    let numbers = [random.number(), random.number(), 1, 4096, 2, 1, 1, 0, 0, 0, u64::MAX];
    socket::send(connection.as_fd(), &frame(138, &numbers, b"stranger"), &files)
        .map_err(|error| error.to_string())?;
    wait_for_end(&connection)
}

/// Ends a connection on which the broker could not send the descriptors of a segment.
fn leave_unread(
    broker: &BrokerProcess,
    viewer: &Pool,
    key: SegmentKey,
    random: &mut RandomInstants,
) -> Result<(), BrokenPromise> {
    /// More answers than the socket has room for.
    const ANSWERS: usize = 1000;
    let HelloAnswer::Welcome(connection) = say_hello(broker.name(), random.number())? else {
        return Err("a client is refused".into());
    };
    let send = |packet: &[u8]| {
        socket::send(connection.as_fd(), packet, &[]).map_err(|error| format!("asking: {error}"))
    };
    (0..ANSWERS).try_for_each(|_| send(&frame(141, &[1], b"")))?;
    let numbers = words(key);
    send(&frame(134, &[1, numbers[0], numbers[1], numbers[2]], b""))?;
    // The broker has a row for it, and the descriptors wait until there is room in its socket.
    eventually("the broker has answered", || {
        let readers = status(viewer).map(|status| status["segments"][0]["readers"].to_string());
        readers.is_ok_and(|readers| readers.contains("stranger"))
    })
    .map(drop)
}

/// Returns the numbers by which messages name a segment.
fn words(key: SegmentKey) -> [u64; 3] {
    let bits = u128::from_str_radix(&key.pool.to_string(), 16).expect("a pool is shown in base 16");
    [bits as u64, (bits >> 64) as u64, key.number.into()]
}

fn wait_for_end(connection: &OwnedFd) -> Result<(), BrokenPromise> {
    loop {
        match socket::receive(connection.as_fd(), FRAME_MAX) {
            Ok(ReceivedPacket::Packet(..)) => {}
            Ok(ReceivedPacket::End) => return Ok(()),
            Ok(ReceivedPacket::Nothing) => return Err(format!("no end within {ANSWER_LIMIT:?}")),
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Descriptors of kinds that nobody has asked for.
#[derive(Debug)]
struct UnwantedDescriptors(Vec<OwnedFd>);

impl UnwantedDescriptors {
    fn open() -> Result<UnwantedDescriptors, BrokenPromise> {
        let text = |errno: nix::Error| errno.to_string();
        let null =
            File::options().read(true).write(true).open("/dev/null").map_err(|error| error.to_string())?;
        let memory = File::from(memfd_create("stranger", MFdFlags::MFD_ALLOW_SEALING).map_err(text)?);
        memory.set_len(1 << 16).map_err(|error| error.to_string())?;
        Ok(UnwantedDescriptors(vec![null.into(), memory.into(), EventFd::new().map_err(text)?.into()]))
    }

    /// Returns up to 16 of them, often none.
    fn some(&self, random: &mut RandomInstants) -> Vec<RawFd> {
        let count = random.below(2) * random.below(17);
        (0..count).map(|_| self.0[random.below(self.0.len() as u64) as usize].as_raw_fd()).collect()
    }
}

fn frame(kind: u16, numbers: &[u64], text: &[u8]) -> Vec<u8> {
    let mut buffer = vec![0; FRAME_MAX];
    let numbers: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
    let mut frame = FrameWriter::new(&mut buffer, kind).expect("there is room");
    frame.push(NUMBERS, &[&numbers]).expect("there is room");
    if !text.is_empty() {
        frame.push(TEXT, &[text]).expect("there is room");
    }
    frame.finish().to_vec()
}

/// Returns a number that is often at the end of a range.
fn number(random: &mut RandomInstants) -> u64 {
    match random.below(5) {
        0 => random.below(4),
        1 => u64::MAX - random.below(2),
        2 => u64::from(u32::MAX) + random.below(2),
        3 => 4096 << random.below(40),
        _ => random.number(),
    }
}

fn numbers(random: &mut RandomInstants, count: usize) -> Vec<u64> {
    (0..count).map(|_| number(random)).collect()
}

/// Returns a packet that is no message of a client.
fn malformed(random: &mut RandomInstants) -> Vec<u8> {
    let (kind, count) = OF_CLIENTS[random.below(OF_CLIENTS.len() as u64) as usize];
    match random.below(5) {
        0 => (0..=random.below(600)).map(|_| random.below(256) as u8).collect(),
        // Too few numbers.
        1 => {
            let (kind, count) = if count == 0 { (141, 1) } else { (kind, count) };
            let fewer = random.below(count as u64) as usize;
            frame(kind, &numbers(random, fewer), b"")
        }
        // A message of the broker, or of nobody.
        2 => {
            let all: Vec<u16> = (0..KINDS.end as u16 + 8).collect();
            let others: Vec<u16> =
                all.into_iter().filter(|kind| OF_CLIENTS.iter().all(|(known, _)| known != kind)).collect();
            let kind = others[random.below(others.len() as u64) as usize];
            let count = random.below(13) as usize;
            frame(kind, &numbers(random, count), b"text")
        }
        // Too short, or too long.
        3 => {
            let mut packet = frame(kind, &numbers(random, count), b"text");
            let length = packet.len() as u64;
            let wrong = random.below(2 * length) as usize;
            packet.resize(if wrong as u64 == length { wrong + 1 } else { wrong.max(1) }, 0);
            packet
        }
        // A text that is none.
        _ => frame(kind, &numbers(random, count), &[0xff, 0xfe]),
    }
}

/// Returns a message of a client with numbers of its own, or about the segment of another client.
fn not_allowed(random: &mut RandomInstants, key: SegmentKey) -> Vec<u8> {
    let (kind, count) = OF_CLIENTS[random.below(OF_CLIENTS.len() as u64) as usize];
    let mut numbers = numbers(random, count);
    let at = usize::from(kind == 134);
    let names_segment = matches!(kind, 131 | 133 | 134 | 137 | 138);
    if names_segment && random.below(4) > 0 {
        numbers[at..at + 3].copy_from_slice(&words(key));
    }
    if kind == 137 {
        numbers[3] = [0, 1, u64::MAX][random.below(3) as usize];
    }
    let terms = if kind == 129 { Some(1) } else { (kind == 138).then_some(3) };
    if let Some(at) = terms.filter(|_| random.below(2) == 0) {
        // Sizes that can be granted.
        numbers[at..at + 7].copy_from_slice(&[4096, 2, 1, 1, 0, 0, 0]);
    }
    frame(kind, &numbers, b"stranger")
}
