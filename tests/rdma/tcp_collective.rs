//! Tests of the collective over TCP that the test programs use. The ranks are threads of this
//! process.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use hostbuf::Error;
use hostbuf::job::{Collective, Hosts, Reduce};

use crate::tcp::Tcp;

const TIMEOUT: Duration = Duration::from_secs(20);

/// Runs `work` on each of `size` ranks, and returns the results in the order of the ranks.
pub fn ranks<T: Send>(size: usize, work: impl Fn(Tcp) -> T + Sync) -> Vec<T> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let leader = listener.local_addr().expect("its address");
    let work = &work;
    thread::scope(|scope| {
        let first = scope.spawn(move || work(Tcp::lead(listener, size, TIMEOUT).expect("all come")));
        // The ranks connect in reverse order.
        let mut others: Vec<_> = (1..size)
            .rev()
            .map(|rank| scope.spawn(move || work(Tcp::join(rank, size, leader, TIMEOUT).expect("all come"))))
            .collect();
        others.push(first);
        others.into_iter().rev().map(|thread| thread.join().expect("it does not panic")).collect()
    })
}

/// Returns the operand of rank `rank`.
fn part(rank: usize, length: usize, round: usize) -> Vec<u8> {
    let pattern: Vec<u8> = (0..251).map(|i| (i * 7 + rank * 31 + round) as u8).collect();
    let mut bytes = pattern.repeat(length / pattern.len() + 1);
    bytes.truncate(length);
    bytes
}

fn check(group: &dyn Collective, names: &[usize], length: usize, round: usize) {
    let me = names[group.rank()];
    let mut all = vec![0; length * group.size()];
    group.all_gather(&part(me, length, round), &mut all).expect("a gathering");
    let wanted = names.iter().map(|&name| part(name, length, round)).collect::<Vec<_>>().concat();
    assert!(all == wanted, "gathered {length} bytes each on {me} of {names:?}");
    for root in 0..group.size() {
        let mut bytes = part(me, length, round);
        group.broadcast(&mut bytes, root).expect("a broadcast");
        assert!(bytes == part(names[root], length, round), "{length} bytes from {root} on {me} of {names:?}");
    }
}

#[test]
fn every_rank_gets_the_operands_of_all() {
    for size in [1, 2, 3, 5] {
        ranks(size, |group| {
            let names: Vec<usize> = (0..size).collect();
            assert_eq!(group.size(), size);
            // Nothing, little, and more than the sockets hold.
            for (round, length) in [0, 1, 4097, 5 << 20].into_iter().enumerate() {
                check(&group, &names, length, round);
            }
            let mut words = [group.rank() as u64, 7];
            group.all_reduce(&mut words, Reduce::Sum).expect("a reduction");
            assert_eq!(words, [(0..size as u64).sum(), 7 * size as u64]);
            group.barrier().expect("a barrier");
        });
    }
}

#[test]
fn groups_can_be_split_repeatedly() {
    ranks(7, |world| {
        let me = world.rank();
        let names: Vec<usize> = (0..7).collect();
        let thirds: Vec<usize> = (0..7).filter(|rank| rank % 3 == me % 3).collect();
        let third = world.split(me % 3).expect("three groups");
        assert_eq!(thirds[third.rank()], me);
        let alone = world.split(usize::MAX - me).expect("seven groups");
        assert_eq!((alone.rank(), alone.size()), (0, 1));
        let halves: Vec<usize> = thirds.iter().copied().filter(|rank| (*rank < 3) == (me < 3)).collect();
        let half = third.split(usize::from(me < 3)).expect("two groups of each");
        // One connection serves several groups in turn.
        for round in 0..20 {
            check(&*third, &thirds, 100 + round, round);
            check(&world, &names, 10 * round, round);
            check(&*half, &halves, 300, round);
            check(&*alone, &[me], 5, round);
        }
        let hosts = Hosts::new(&world).expect("hosts");
        assert_eq!((hosts.count, hosts.local.size(), hosts.leads()), (1, 7, me == 0));
    });
}

#[test]
fn a_lost_rank_is_an_error_on_all() {
    let begun = Instant::now();
    let seen = ranks(4, |group| {
        group.barrier().expect("all are there");
        if group.rank() == 2 {
            return String::new();
        }
        // An operation that began before the rank was lost may succeed; a later one fails.
        let error = (0..1000).find_map(|_| group.barrier().err()).expect("it has gone");
        assert!(matches!(error, Error::Collective { .. }), "{error}");
        error.to_string()
    });
    assert!(seen[0].contains("rank 2 is lost"), "{seen:?}");
    assert!(begun.elapsed() < TIMEOUT / 2, "{:?}", begun.elapsed());
}

#[test]
fn different_calls_are_an_error_on_all() {
    let seen = ranks(3, |group| {
        let length = if group.rank() == 1 { 8 } else { 16 };
        let result = group.all_gather(&vec![1; length], &mut vec![0; 3 * length]);
        result.expect_err("not the same length").to_string()
    });
    assert!(seen[0].contains("rank 1 sent [0, 0, 8]"), "{seen:?}");
}

#[test]
fn the_first_rank_waits_for_the_others() {
    // An address of the loopback device that is only this process's, so that the port stays free
    // meanwhile.
    let id = std::process::id();
    let address = Ipv4Addr::new(127, 1 + (id >> 16) as u8 % 250, (id >> 8) as u8, id as u8);
    let listener = TcpListener::bind((address, 0)).expect("a port");
    let leader = listener.local_addr().expect("its address");
    drop(listener);
    let (knocked, knocks) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        let other = scope.spawn(move || {
            TcpStream::connect(leader).expect_err("nobody is there yet");
            knocked.send(()).expect("the other thread waits for it");
            Tcp::join(1, 2, leader, TIMEOUT).expect("it comes").barrier()
        });
        knocks.recv().expect("it has tried");
        let listener = TcpListener::bind(leader).expect("the same port");
        // A process that does not belong to the group connects.
        drop(TcpStream::connect(leader).expect("it listens"));
        let group = Tcp::lead(listener, 2, TIMEOUT).expect("the other one comes");
        group.barrier().expect("both are there");
        other.join().expect("it does not panic").expect("both are there");
    });
}

#[test]
fn a_rank_that_does_not_connect_is_an_error() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let short = Duration::from_millis(100);
    let Err(error) = Tcp::lead(listener, 3, short) else { panic!("no rank has connected") };
    assert!(error.to_string().contains("0 of 2"), "{error}");
    let nobody = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let Err(error) = Tcp::join(1, 2, nobody, short) else { panic!("no rank listens") };
    assert!(error.to_string().contains("127.0.0.1:1 does not answer"), "{error}");
}
