//! A broker under a service manager: the test plays its part of `sd_notify(3)`.

use std::io::{BufRead, BufReader, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hostbuf_tests::{Scratch, eventually, hostbuf, program};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use nix::unistd::Pid;
use serde_json::Value;

use crate::running_broker::{RunningBroker, SOON, socket_name};
use crate::stopped_child::stop_child;

/// A service manager with its notification socket.
struct Manager {
    folder: Scratch,
    socket: UnixDatagram,
}

impl Manager {
    fn new(test: &str) -> Manager {
        let folder = Scratch::new(test);
        let socket = UnixDatagram::bind(folder.path("notify")).expect("the folder is writable");
        socket.set_read_timeout(Some(SOON)).expect("a time");
        Manager { folder, socket }
    }

    /// Starts a broker without arguments of systemd, or with a stored descriptor.
    fn start(&self, name: &str, stored: Option<(&str, OwnedFd)>) -> RunningBroker {
        // Only the process that the shell becomes knows its number.
        let script =
            "exec 3<&0 </dev/null; export LISTEN_PID=$$; exec \"$0\" broker --linger 0.1 --name \"$1\"";
        let mut command = Command::new("sh");
        command
            .args(["-c", script])
            .arg(hostbuf())
            .arg(name)
            .env("NOTIFY_SOCKET", self.folder.path("notify"));
        if let Some((stored_name, descriptor)) = stored {
            command.env("LISTEN_FDS", "1").env("LISTEN_FDNAMES", stored_name).stdin(Stdio::from(descriptor));
        }
        let broker = RunningBroker::spawn(name.to_owned(), &mut command);
        assert_eq!(self.receive().0, "READY=1");
        broker
    }

    /// Receives a message, and its descriptor.
    #[allow(unsafe_code, reason = "takes over a descriptor that the kernel has made")]
    fn receive(&self) -> (String, Option<OwnedFd>) {
        let mut text = [0; 1024];
        let mut buffers = [IoSliceMut::new(&mut text)];
        let mut space = nix::cmsg_space!([i32; 4]);
        let received = recvmsg::<()>(
            self.socket.as_raw_fd(),
            &mut buffers,
            Some(&mut space),
            MsgFlags::MSG_CMSG_CLOEXEC,
        );
        let received = received.expect("a message in time");
        let mut descriptors = Vec::new();
        for control in received.cmsgs().expect("it is whole") {
            if let ControlMessageOwned::ScmRights(list) = control {
                // SAFETY: the kernel has made these descriptors for this process.
                descriptors.extend(list.iter().map(|&fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        let length = received.bytes;
        let text = String::from_utf8(text[..length].to_vec()).expect("text");
        (text, descriptors.pop())
    }

    /// Receives a descriptor for the store, and returns it with its name.
    fn receive_stored(&self) -> (String, OwnedFd) {
        let (text, descriptor) = self.receive();
        let name = text.strip_prefix("FDSTORE=1\nFDPOLL=0\nFDNAME=").unwrap_or_else(|| panic!("{text}"));
        (name.to_owned(), descriptor.expect("the message has a descriptor"))
    }
}

/// Starts a client with 4 blocks of 1 MiB.
fn start_client(name: &str) -> Child {
    let mut command = Command::new(program("pool_client"));
    command.args([name, "4"]).env("HOSTBUF_POOL", "required");
    let mut client = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(client.stdout.take().expect("it is piped")).read_line(&mut line).expect("text");
    assert!(line.starts_with("Shared "), "{line}");
    client
}

fn status(broker: &RunningBroker) -> Value {
    serde_json::from_str(&broker.connect("test").status().expect("it answers")).expect("JSON")
}

#[test]
fn a_restarted_broker_counts_what_is_in_the_store() {
    let name = socket_name("store");
    let manager = Manager::new("broker-store");
    let broker = manager.start(&name, None);
    let mut client = start_client(&name);
    let (stored_name, stored) = manager.receive_stored();
    let bytes = status(&broker)["bytes"].as_u64().expect("a number");
    assert!(bytes > 4 << 20 && stored_name.ends_with(&format!("-{bytes}")), "{bytes} {stored_name}");
    assert!(stored_name.len() <= 255 && !stored_name.contains(':'));

    // The client cannot report what it has.
    let client_pid = Pid::from_raw(client.id() as i32);
    stop_child(client.id());
    broker.signal(Signal::SIGKILL);
    broker.wait();
    let broker = manager.start(&name, Some((&stored_name, stored.try_clone().expect("a descriptor"))));
    let counted = |field: &str| status(&broker)[field].as_u64();
    assert_eq!((counted("bytes"), counted("unclaimed_bytes")), (Some(bytes), Some(bytes)));
    assert_eq!(status(&broker)["unaccounted"][0]["pid"], client.id());
    kill(client_pid, Signal::SIGCONT).expect("it runs");
    eventually("the client hands its segment back", SOON, || counted("unclaimed_bytes") == Some(0));
    let after = status(&broker);
    assert_eq!((&after["bytes"], &after["segments"][0]["stream"]), (&bytes.into(), &"stored".into()));
    // The end of the client ends its segment, which leaves the store.
    drop(client.stdin.take());
    assert!(client.wait().expect("a child").success());
    assert_eq!(manager.receive().0, format!("FDSTOREREMOVE=1\nFDNAME={stored_name}"));
    eventually("the bytes are free", SOON, || counted("bytes") == Some(0));
    broker.signal(Signal::SIGTERM);
    assert_eq!(broker.wait().0.code(), Some(0));
    assert_eq!(manager.receive().0, "STOPPING=1");
}

#[test]
fn a_stored_segment_that_no_process_has_is_given_up() {
    let name = socket_name("store-unused");
    let manager = Manager::new("broker-store-unused");
    let broker = manager.start(&name, None);
    let mut client = start_client(&name);
    let (stored_name, stored) = manager.receive_stored();
    broker.signal(Signal::SIGKILL);
    broker.wait();
    client.kill().expect("it runs");
    client.wait().expect("a child");
    let broker = manager.start(&name, Some((&stored_name, stored)));
    assert_eq!(manager.receive().0, format!("FDSTOREREMOVE=1\nFDNAME={stored_name}"));
    assert_eq!(status(&broker)["bytes"], 0);
    // The memory can be granted again, and is stored.
    let mut client = start_client(&name);
    let (next, _) = manager.receive_stored();
    assert_ne!(next, stored_name);
    drop(client.stdin.take());
    assert!(client.wait().expect("a child").success());
    manager.socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a time");
    assert_eq!(manager.receive().0, format!("FDSTOREREMOVE=1\nFDNAME={next}"));
}
