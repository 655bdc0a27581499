//! `hostbuf mirror`: copies between the pools of two brokers, through processes that are killed.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use hostbuf_pool::{ArrayLayout, BlockHeader, ElementType, Pool, Producer, ProducerOptions, Token};
use hostbuf_tests::{CommandOutput, Scratch, can_simulate, hostbuf, program, root, run};
use nix::sys::signal::Signal;

use crate::arguments::one_line;
use crate::running_broker::RunningBroker;

const FRAME_BYTES: u64 = 2 << 20;
const STAMP_EVERY: usize = 4096;

/// A process of `hostbuf mirror`. It is killed on drop.
struct MirrorProcess {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl MirrorProcess {
    fn start(broker: &RunningBroker, arguments: &[&str]) -> MirrorProcess {
        MirrorProcess::start_with(broker, arguments, Stdio::inherit())
    }

    /// Starts a process with this standard error.
    fn start_with(broker: &RunningBroker, arguments: &[&str], errors: Stdio) -> MirrorProcess {
        let mut child = Command::new(hostbuf())
            .arg("mirror")
            .args(arguments)
            .env("HOSTBUF_POOL", broker.variable())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .expect("the command starts");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        MirrorProcess { input: child.stdin.take(), output, child }
    }

    /// Starts a receiver, and returns it and the address at which it listens.
    fn listen(broker: &RunningBroker, address: &str) -> (MirrorProcess, String) {
        let arguments = ["--listen", address, "--limit", "64M", "--retain", "4"];
        let mut process = MirrorProcess::start(broker, &arguments);
        let line = process.line();
        let rest = line.strip_prefix("hostbuf mirror: listening at ").unwrap_or_else(|| panic!("{line}"));
        let address = rest.split(' ').next().expect("an address").to_owned();
        (process, address)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line of text");
        line.trim_end().to_owned()
    }

    /// Sends the block of a token.
    fn begin(&mut self, token: Token) {
        writeln!(self.input.as_mut().expect("it is open"), "{token}").expect("it reads");
    }

    /// Kills the process, also in the midst of a frame.
    fn kill(&mut self) {
        self.child.kill().expect("it is a child");
        self.child.wait().expect("it is a child");
    }
}

impl Drop for MirrorProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn producer(pool: &Pool) -> Producer {
    pool.producer(&ProducerOptions::new(FRAME_BYTES, 8)).expect("there is memory")
}

/// Publishes frame `number` with a stamp in every 4 KiB.
fn publish(producer: &Producer, number: u64) -> Token {
    let mut block = producer.take_timeout(Duration::from_secs(20)).expect("a free block");
    for chunk in block.as_mut_slice().chunks_mut(STAMP_EVERY) {
        chunk[..8].copy_from_slice(&number.to_le_bytes());
    }
    let layout = ArrayLayout::contiguous(ElementType::UInt8, &[FRAME_BYTES]).expect("a layout");
    let mut header = BlockHeader::new(layout);
    header.frame = number;
    block.publish_with(header).expect("it fits")
}

/// Checks that the copy of frame `number` is whole.
fn check(pool: &Pool, copy: &str, number: u64) {
    let copy: Token = copy.parse().unwrap_or_else(|error| panic!("\"{copy}\": {error}"));
    let block = pool.acquire(&copy).expect("it is published");
    assert_eq!(block.header().frame, number);
    for chunk in block.as_slice().chunks(STAMP_EVERY) {
        assert_eq!(chunk[..8], number.to_le_bytes());
    }
}

/// Lets a part of the time pass that a frame takes, without giving up the core.
fn spin(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::spin_loop();
    }
}

#[test]
fn a_filter_prints_the_token_of_each_copy() {
    let (here, there) = (RunningBroker::start("mirror-a", &[]), RunningBroker::start("mirror-b", &[]));
    let (receiver, address) = MirrorProcess::listen(&there, "127.0.0.1:0");
    // Nobody reads its standard error.
    let (_, errors) = std::io::pipe().expect("a pipe");
    let mut sender = MirrorProcess::start_with(&here, &["--to", &address], errors.into());
    let (pool, viewer) = (here.connect("camera"), there.connect("viewer"));
    let producer = producer(&pool);
    for number in 0..10 {
        sender.begin(publish(&producer, number));
        check(&viewer, &sender.line(), number);
    }
    writeln!(sender.input.as_mut().expect("it is open"), "no token").expect("it reads");
    assert_eq!(sender.line(), "", "the lines stay side by side");
    sender.begin(publish(&producer, 10));
    check(&viewer, &sender.line(), 10);
    drop(sender.input.take());
    assert_eq!(sender.child.wait().expect("a child").code(), Some(1));
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(receiver.child.id() as i32), Signal::SIGTERM)
        .expect("it runs");
    let mut receiver = receiver;
    assert_eq!(receiver.child.wait().expect("a child").code(), Some(0));
}

#[test]
fn a_killed_receiver_is_replaced_and_no_copy_is_torn() {
    let (here, there) = (RunningBroker::start("mirror-c", &[]), RunningBroker::start("mirror-d", &[]));
    let (mut receiver, address) = MirrorProcess::listen(&there, "127.0.0.1:0");
    let mut sender = MirrorProcess::start(&here, &["--to", &address, "--deadline", "30"]);
    let (pool, viewer) = (here.connect("camera"), there.connect("viewer"));
    let producer = producer(&pool);
    // The first connection must come about.
    sender.begin(publish(&producer, 0));
    check(&viewer, &sender.line(), 0);
    for number in 1..40u64 {
        sender.begin(publish(&producer, number));
        spin(Duration::from_micros(number * 137 % 4000));
        receiver.kill();
        (receiver, _) = MirrorProcess::listen(&there, &address);
        // The copy is that of either receiver; the broker keeps those of the first one for a while.
        check(&viewer, &sender.line(), number);
    }
}

#[test]
fn a_killed_sender_leaves_its_successor_a_working_receiver() {
    let (here, there) = (RunningBroker::start("mirror-e", &[]), RunningBroker::start("mirror-f", &[]));
    let (_receiver, address) = MirrorProcess::listen(&there, "127.0.0.1:0");
    let (pool, viewer) = (here.connect("camera"), there.connect("viewer"));
    let producer = producer(&pool);
    for round in 0..40u64 {
        let mut sender = MirrorProcess::start(&here, &["--to", &address]);
        sender.begin(publish(&producer, 2 * round));
        check(&viewer, &sender.line(), 2 * round);
        sender.begin(publish(&producer, 2 * round + 1));
        spin(Duration::from_micros(round * 137 % 4000));
        sender.kill();
    }
}

#[test]
fn a_killed_broker_interrupts_no_copies() {
    let (here, there) = (RunningBroker::start("mirror-g", &[]), RunningBroker::start("mirror-h", &[]));
    let (_receiver, address) = MirrorProcess::listen(&there, "127.0.0.1:0");
    let mut sender = MirrorProcess::start(&here, &["--to", &address]);
    let (pool, viewer) = (here.connect("camera"), there.connect("viewer"));
    let producer = producer(&pool);
    for number in 0..20 {
        if number == 10 {
            here.signal(Signal::SIGKILL);
            there.signal(Signal::SIGKILL);
        }
        sender.begin(publish(&producer, number));
        check(&viewer, &sender.line(), number);
    }
}

/// A camera on h1, its mirror to h0, and a viewer there. The camera gets a line for its next frame
/// when the viewer has the one before. Functions: `frames ROWS` runs it and calls `seen` with the
/// number of frames that the viewer has, for which `release` lets the camera go on; `receive`
/// starts a receiver, whose PID is in /run/receiver on h0.
const CAMERA_AND_VIEWER: &str = r#"
on() { local host=$1; shift; "$SIMHOSTS_RSH" "$host" "$@"; }
broker="$HOSTBUF broker --path /run/pool >/run/broker &"
ready="until [ -S /run/pool ]; do :; done; export HOSTBUF_POOL=/run/pool;"
receive() {
    on h0 "$ready echo \$\$ >/run/receiver; exec $HOSTBUF mirror --listen 10.77.0.1:7400 --limit 128M" >&2 &
}
release() { echo >&3; }
frames() {
    on h0 "$broker" && receive
    mkfifo /run/next
    on h1 "$broker $ready
        until timeout 1 bash -c ': </dev/tcp/10.77.0.1/7400' 2>/dev/null; do :; done
        $FRAMES write /run/pool $1 $2 |
            { read -r limits; exec $HOSTBUF mirror --to 10.77.0.1:7400 --deadline $3; }" </run/next |
        on h0 "$ready $FRAMES read /run/pool 2" | {
            exec 3>/run/next
            read -r limits
            while read -r line; do
                echo "$line"
                seen $((count += 1))
            done
        }
}
"#;

/// After the fourth frame h0 is unreachable until an attempt to connect has timed out. The fifth
/// frame is sent meanwhile.
const LOST_NETWORK: &str = r#"
seen() {
    [ $1 = 4 ] || { release; return; }
    "$SIMHOSTS_DIR/host" down h0
    release
    on h1 "timeout 1 bash -c ': </dev/tcp/10.77.0.1/9'" >&2
    echo "the attempt: $?" >&2
    "$SIMHOSTS_DIR/host" up h0
}
frames 12 1080 60
"#;

/// After the first frame the receiver is stopped. When its host has all of the second frame, which
/// is short, the receiver is killed while h0 is unreachable: the packet that says so is lost. The
/// kernel keeps it until it gives up looking for the neighbour, and the attempt to connect, too.
const LOST_RESET: &str = r#"
# Prints the queue lengths of the connection on host $1, in which the local or remote port is 7400.
queues() { on $1 "cat /proc/net/tcp" | awk '$4 == "01" && ($2 $3) ~ /:1CE8/ { print $5 }'; }
seen() {
    [ $1 = 1 ] || { release; return; }
    # The first thread that sees the signal stops the others, which may receive a frame before.
    on h0 'pid=$(cat /run/receiver); kill -STOP $pid
        while grep -h ^State: /proc/$pid/task/*/status | grep -qv "T (stopped)"; do :; done'
    release
    until [[ $(queues h0) =~ :0000F... ]]; do :; done
    until [[ $(queues h1) == 00000000:* ]]; do :; done
    # A host that is down takes no new sessions, and keeps those that it has.
    coproc ender { on h0 'echo here; read -r; kill -KILL $(cat /run/receiver)
        while [ -e /proc/$(cat /run/receiver) ]; do :; done
        : </dev/tcp/10.77.0.2/9
        echo ended'; }
    read -r here <&"${ender[0]}"
    "$SIMHOSTS_DIR/host" down h0
    echo >&"${ender[1]}"
    read -r ended <&"${ender[0]}"
    echo "the receiver: $ended" >&2
    "$SIMHOSTS_DIR/host" up h0
    receive
}
frames 4 8 20
"#;

/// Runs a script with the functions of [`CAMERA_AND_VIEWER`] on two hosts. Returns what the viewer
/// has printed of each frame, and all output.
fn camera_and_viewer(script: &str) -> (Vec<String>, CommandOutput) {
    let mut command = Command::new(root().join("scripts/simhosts"));
    command.args(["2", "--", "bash", "-c", &format!("{CAMERA_AND_VIEWER}{script}")]);
    command.env("HOSTBUF", hostbuf()).env("FRAMES", program("pool_frames"));
    let outcome = CommandOutput::of(&mut command).ok();
    (outcome.stdout.lines().map(str::to_owned).collect(), outcome)
}

/// Returns what the viewer prints of so many whole frames.
fn whole(frames: u64) -> Vec<String> {
    (0..frames).map(|number| format!("{number} 0")).collect()
}

#[test]
fn a_mirror_joins_two_networks_of_which_one_is_lost_for_a_while() {
    if !can_simulate() {
        return;
    }
    let (frames, outcome) = camera_and_viewer(LOST_NETWORK);
    assert!(outcome.stderr.contains("the attempt: 124"), "it was reachable: {outcome:?}");
    assert_eq!(frames, whole(12), "{outcome:?}");
}

#[test]
fn a_receiver_whose_end_was_not_heard_is_replaced() {
    if !can_simulate() {
        return;
    }
    let (frames, outcome) = camera_and_viewer(LOST_RESET);
    assert!(outcome.stderr.contains("the receiver: ended"), "it was not killed: {outcome:?}");
    assert!(outcome.stderr.contains("/dev/tcp/10.77.0.2/9: No route to host"), "it was heard: {outcome:?}");
    assert_eq!(frames, whole(4), "{outcome:?}");
}

#[test]
fn a_side_is_required_and_only_one() {
    one_line(&run(&["mirror"]), 2, &["--listen"]);
    one_line(&run(&["mirror", "--listen", "127.0.0.1:0", "--to", "h:1"]), 2, &["--to"]);
}

#[test]
fn invalid_options_are_refused_with_the_remedy() {
    let (listen, to) = (["--listen", "127.0.0.1:0"], ["--to", "host2:7400"]);
    let peer = "expected a host name or IP address, and a port from 1 to 65535, for example host2:7400";
    for (arguments, words) in [
        (
            &["--listen", "10.0.0.2"][..],
            "expected an IP address of this host and a port, for example 10.0.0.2:7400",
        ),
        (
            &["--listen", ":7400"],
            "invalid value ':7400' for '--listen <ADDRESS:PORT>': expected an IP address",
        ),
        (&["--to", "host2"], peer),
        (&["--to", "host2:0"], peer),
        (&["--to", "fd00::2:7400"], "or [fd00::2]:7400"),
        (&[&listen[..], &["--limit", "0"]].concat(), "--limit 0 bytes is too small"),
        (&[&listen[..], &["--limit", "4K"]].concat(), "so give it at least 8K"),
        (&[&listen[..], &["--limit", "-1"]].concat(), "expected a size, for example"),
        (&[&listen[..], &["--retain", "0"]].concat(), "expected a number of frames from 1 to 65535"),
        (&[&listen[..], &["--retain", "-1"]].concat(), "expected a number of frames from 1 to 65535"),
        (&[&listen[..], &["--limit", "1M", "--retain", "256"]].concat(), "lower --retain, or raise --limit"),
        (
            &[&to[..], &["--deadline", "0"]].concat(),
            "expected a number of seconds above 0 and at most 2592000",
        ),
        (
            &[&to[..], &["--deadline", "-1"]].concat(),
            "expected a number of seconds above 0 and at most 2592000",
        ),
    ] {
        one_line(&run(&[&["mirror"], arguments].concat()), 2, &[words]);
    }
}

/// The command of the tests was built without RDMA.
#[test]
fn rdma_is_refused_without_the_program_that_has_it() {
    let prefix = Scratch::new("mirror-without-rdma");
    std::fs::create_dir(prefix.path("bin")).expect("it is new");
    std::fs::copy(hostbuf(), prefix.path("bin/hostbuf")).expect("it is built");
    let program = prefix.path("libexec/hostbuf/hostbuf-rdma");
    let remedy = format!("scripts/install --prefix {}", prefix.0.display());
    for option in ["--rdma", "--rdma=mlx5_0"] {
        for side in [["--listen", "127.0.0.1:0"], ["--to", "host2:7400"]] {
            let mut command = Command::new(prefix.path("bin/hostbuf"));
            let outcome = CommandOutput::of(command.args(["mirror", option]).args(side));
            one_line(&outcome, 82, &["--rdma is not supported here", &program, &remedy, "leave out --rdma"]);
        }
    }
}

#[test]
fn an_address_without_a_free_port_or_a_receiver_is_refused_with_the_remedy() {
    let broker = RunningBroker::start("mirror-i", &[]);
    let (mut receiver, address) = MirrorProcess::listen(&broker, "127.0.0.1:0");
    let mirror = |arguments: &[&str]| {
        let mut command = Command::new(hostbuf());
        CommandOutput::of(command.arg("mirror").args(arguments).env("HOSTBUF_POOL", broker.variable()))
    };
    let words = ["end the program that listens there, or choose another port"];
    one_line(&mirror(&["--listen", &address]), 85, &words);
    // The address is of a network for documentation.
    one_line(&mirror(&["--listen", "192.0.2.1:7400"]), 85, &["choose an address of this host"]);
    receiver.kill();
    one_line(&mirror(&["--to", &address]), 2, &["Connection refused", "start the receiver there first"]);
    one_line(&mirror(&["--to", "nohost.invalid:7400"]), 2, &["nohost.invalid", "check the address"]);
}
