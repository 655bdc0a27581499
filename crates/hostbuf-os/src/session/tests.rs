//! Tests of both sides of a session.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use hostbuf_protocol::failure::{ErrorClass, ErrorRecord};
use hostbuf_protocol::frame::VERSION;
use hostbuf_protocol::message::{Hello, Message, Role};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::{AcceptedClient, Acceptor, Session, SessionError};
use crate::{encode, socket};

const LIMIT: Duration = Duration::from_secs(10);

fn hello() -> Message<'static> {
    Message::Hello { hello: Hello::of(Role::Library), command: b"./app" }
}

fn refusal() -> Message<'static> {
    Message::Fail { prints: false, error: ErrorRecord::new(ErrorClass::NoSpace, "no room") }
}

/// Returns the name of a socket for one test, and its acceptor.
fn server(test: &str) -> (String, Acceptor) {
    let name = format!("hostbuf/session/{test}/{}", std::process::id());
    let listener = socket::listen_on(&name).expect("the name is free");
    (name, Acceptor::new(listener))
}

/// Advances until there are `count` clients.
fn clients(acceptor: &mut Acceptor, count: usize) -> Vec<AcceptedClient> {
    let begun = Instant::now();
    let mut accepted = Vec::new();
    while accepted.len() < count {
        accepted.extend(acceptor.advance());
        assert!(begun.elapsed() < LIMIT, "{} clients", accepted.len());
        std::thread::yield_now();
    }
    accepted
}

#[test]
fn a_client_is_handed_over_with_its_hello_and_its_process() {
    let (name, mut acceptor) = server("hands-over");
    let session = Session::open(&name, None, &hello()).unwrap();
    let client = clients(&mut acceptor, 1).remove(0);
    assert_eq!(client.hello.message(), Ok(hello()));
    assert_eq!(client.connection.peer().pid, std::process::id() as i32);
    assert!(client.process.is_some() && acceptor.expects_within().is_none());
    client.connection.send(&Message::Go { notice: b"run" }, &[]).unwrap();
    let answer = session.first_answer(LIMIT).unwrap();
    assert_eq!(answer.message(), Ok(Message::Go { notice: b"run" }));
}

#[test]
fn connections_without_a_hello_cost_only_themselves() {
    let (name, mut acceptor) = server("pending");
    let silent = socket::connect(&name, None).unwrap();
    let garbage = socket::connect(&name, None).unwrap();
    socket::send(garbage.as_fd(), b"garbage", &[]).unwrap();
    let other = socket::connect(&name, None).unwrap();
    socket::send(other.as_fd(), &encode(&Message::Mapped), &[]).unwrap();
    drop(socket::connect(&name, None).unwrap());
    let session = Session::open(&name, None, &hello()).unwrap();
    assert_eq!(clients(&mut acceptor, 1).len(), 1);
    assert!(acceptor.advance().is_empty());
    // The silent one may still say hello; the others are gone.
    assert_eq!(acceptor.descriptors().count(), 2);
    assert!(acceptor.expects_within().is_none_or(|left| left <= Duration::from_secs(1)));
    socket::send(silent.as_fd(), &encode(&hello()), &[]).unwrap();
    assert_eq!(clients(&mut acceptor, 1).len(), 1);
    drop(session);
}

#[test]
fn a_flood_of_silent_connections_is_refused_with_the_reason() {
    let (name, mut acceptor) = server("flood");
    let silent: Vec<_> = (0..150).map(|_| socket::connect(&name, None).unwrap()).collect();
    let session = Session::open(&name, None, &hello()).unwrap();
    assert_eq!(clients(&mut acceptor, 1).len(), 1);
    assert!(acceptor.descriptors().count() < 140);
    let oldest = crate::FrameSocket::from_fd(silent.into_iter().next().unwrap()).unwrap();
    let Ok(crate::Received::Packet(packet)) = oldest.receive() else { panic!("no answer") };
    assert!(matches!(packet.message(), Ok(Message::Refused { .. })));
    drop(session);
}

#[test]
fn a_client_of_another_version_is_refused() {
    let (name, mut acceptor) = server("version");
    let client = crate::FrameSocket::from_fd(socket::connect(&name, None).unwrap()).unwrap();
    let mut packet = encode(&hello());
    packet[4..6].copy_from_slice(&(VERSION + 1).to_ne_bytes());
    client.send_packet(&packet, &[]).unwrap();
    assert!(acceptor.advance().is_empty());
    let Ok(crate::Received::Packet(answer)) = client.receive() else { panic!("no answer") };
    let Ok(Message::Refused { error }) = answer.message() else { panic!("no refusal") };
    let text = error.line;
    assert!(text.contains(&format!("version {VERSION} ")) && text.contains("use one"), "{text}");
}

#[test]
fn the_reason_of_a_server_that_closes_at_once_reaches_the_client() {
    let (name, _) = server("reason");
    let listener = socket::listen_on(&format!("{name}/2")).unwrap();
    let answered = |client: &Session| {
        let fd = socket::accept(listener.as_fd()).unwrap().expect("a client has connected");
        let connection = crate::FrameSocket::from_fd(fd).unwrap();
        connection.send(&refusal(), &[]).unwrap();
        // The hello has not been read, so the kernel resets the connection.
        drop(connection);
        client.first_answer(LIMIT)
    };
    let client = Session::open(&format!("{name}/2"), None, &hello()).unwrap();
    match answered(&client) {
        Err(SessionError::Refused(packet)) => assert_eq!(packet.message(), Ok(refusal())),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_way_to_get_no_answer_has_an_error() {
    let (name, mut acceptor) = server("errors");
    let open = || Session::open(&name, None, &hello()).unwrap();
    let short = Duration::from_millis(20);
    let session = open();
    assert!(matches!(session.first_answer(short), Err(SessionError::Timeout(limit)) if limit == short));
    let client = clients(&mut acceptor, 1).remove(0);
    client.connection.send_packet(b"garbage", &[]).unwrap();
    assert!(matches!(session.first_answer(LIMIT), Err(SessionError::Malformed)));
    let mut packet = encode(&refusal());
    packet[4..6].copy_from_slice(&(VERSION + 1).to_ne_bytes());
    client.connection.send_packet(&packet, &[]).unwrap();
    assert!(matches!(session.first_answer(LIMIT), Err(SessionError::OtherVersion(v)) if v == VERSION + 1));
    drop(client);
    assert!(matches!(session.first_answer(LIMIT), Err(SessionError::Gone)));
    drop(acceptor);
    assert!(matches!(Session::open(&name, None, &hello()), Err(SessionError::NoServer)));
}

/// Runs `work` while this process can open `more` descriptors.
fn with_descriptors<T>(more: usize, work: impl FnOnce() -> T) -> T {
    let is_free = |fd: &u64| !std::path::Path::new(&format!("/proc/self/fd/{fd}")).exists();
    // The limit is on the number of a descriptor, and new ones get the lowest free numbers.
    let limit = (0..).filter(is_free).nth(more).expect("the numbers do not end");
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, limit, hard).unwrap();
    let result = work();
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    result
}

#[test]
fn a_client_waits_while_descriptors_are_missing() {
    let (name, mut acceptor) = server("shortage");
    let session = Session::open(&name, None, &hello()).unwrap();
    // The spare one is for the connection, and the process has none.
    for turn in 0..2 {
        let (accepted, since) = with_descriptors(0, || {
            let accepted = acceptor.advance();
            (accepted, acceptor.shortage().map(|shortage| shortage.since))
        });
        assert!(accepted.is_empty(), "{turn}");
        assert!(since.is_some() && acceptor.retry_after().is_some(), "{turn}");
    }
    assert!(acceptor.expects_within().is_some());
    let client = clients(&mut acceptor, 1).remove(0);
    assert!(client.process.is_some());
    acceptor.advance();
    assert!(acceptor.shortage().is_none());
    drop(session);
}

/// Each client needs two descriptors of the server. Clients that have one each would wait for ever.
#[test]
fn many_clients_are_served_with_few_descriptors() {
    let (name, mut acceptor) = server("few");
    let sessions: Vec<Session> = (0..40).map(|_| Session::open(&name, None, &hello()).unwrap()).collect();
    let served = with_descriptors(7, || {
        let (mut served, begun) = (0, Instant::now());
        while served < sessions.len() && begun.elapsed() < LIMIT {
            // Dropped, since the server has nothing else to do for them.
            served += acceptor.advance().len();
            if let Some(pace) = acceptor.retry_after() {
                std::thread::sleep(pace / 10);
            }
        }
        served
    });
    assert_eq!(served, sessions.len());
}
