//! Tasks that wait for blocks.

use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use futures::{join, poll};
use hostbuf_pool::{Block, Pool, PoolMode, PoolOptions, Producer, ProducerOptions, TakeError};

fn private_pool() -> Pool {
    Pool::connect(PoolOptions::new("tasks").mode(PoolMode::Private)).expect("it needs no broker")
}

/// Makes a producer of `blocks` blocks in a private pool.
fn producer(blocks: u32) -> Producer {
    producer_of(&private_pool(), blocks)
}

fn producer_of(pool: &Pool, blocks: u32) -> Producer {
    pool.producer(&ProducerOptions::new(4096, blocks)).expect("there is memory")
}

/// Returns whether a thread waits on behalf of tasks.
fn has_thread() -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").expect("/proc is mounted").flatten();
    let mut names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.any(|name| name.trim_end() == "hostbuf-take")
}

/// Lets other threads run while it has a block.
fn use_briefly(block: Block) {
    std::thread::yield_now();
    drop(block);
}

/// Waits until `condition` holds.
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn tasks_get_blocks_in_their_order() {
    let producer = producer(2);
    let held = [producer.take().unwrap(), producer.take().unwrap()];
    let order = std::cell::RefCell::new(Vec::new());
    let task = async |number| {
        let block = producer.take_async().await.unwrap();
        order.borrow_mut().push(number);
        block
    };
    block_on(async {
        let (mut one, mut two, mut three) = (pin!(task(1)), pin!(task(2)), pin!(task(3)));
        assert!(poll!(&mut one).is_pending() && poll!(&mut two).is_pending());
        assert!(poll!(&mut three).is_pending() && has_thread());
        drop(held);
        // The third task gets a block when one of the others has dropped its own.
        let others = async { drop((one.await, two.await)) };
        join!(others, three);
    });
    assert_eq!(*order.borrow(), [1, 2, 3]);
    eventually("the thread has ended", || !has_thread());
}

#[test]
fn a_task_does_not_overtake_one_that_waits() {
    let producer = producer(2);
    let _kept = producer.take().unwrap();
    let mut held = producer.take().unwrap();
    // The block is free until the thread has it, which need not be soon: one of the rounds is
    // within that time.
    for round in 0..200 {
        held = block_on(async {
            let (mut first, mut second) = (pin!(producer.take_async()), pin!(producer.take_async()));
            assert!(poll!(&mut first).is_pending());
            drop(held);
            assert!(poll!(&mut second).is_pending(), "round {round}");
            first.await.unwrap()
        });
    }
}

#[test]
fn a_dropped_future_keeps_no_block() {
    let producer = producer(2);
    let (_kept, held) = (producer.take().unwrap(), producer.take().unwrap());
    block_on(async {
        // It has no block yet.
        assert!(poll!(pin!(producer.take_async())).is_pending());
    });
    eventually("the thread has ended", || !has_thread());
    block_on(async {
        // The thread has taken the block for the first task, which is dropped.
        let mut first = Box::pin(producer.take_async());
        assert!(poll!(&mut first).is_pending());
        let mut second = pin!(producer.take_async());
        assert!(poll!(&mut second).is_pending());
        drop(held);
        drop(first);
        second.await.unwrap();
    });
    assert!(producer.try_take().unwrap().is_some());
    eventually("the thread has ended", || !has_thread());
}

#[test]
fn closing_the_producer_ends_the_waits_of_tasks_and_threads() {
    let pool = private_pool();
    let producer = producer_of(&pool, 2);
    let held = [producer.take().unwrap(), producer.take().unwrap()];
    block_on(async {
        let (mut first, mut second) = (pin!(producer.take_async()), pin!(producer.take_async()));
        assert!(poll!(&mut first).is_pending() && poll!(&mut second).is_pending());
        std::thread::scope(|scope| {
            let threads = [scope.spawn(|| producer.take()), scope.spawn(|| producer.take())];
            // Each wait is counted before it begins.
            eventually("all four wait", || pool.status().unwrap().contains("\"exhausted\":4"));
            producer.close();
            for thread in threads {
                assert!(matches!(thread.join().unwrap(), Err(TakeError::Closed)));
            }
        });
        assert!(matches!(first.await, Err(TakeError::Closed)));
        assert!(matches!(second.await, Err(TakeError::Closed)));
        assert!(matches!(producer.take_async().await, Err(TakeError::Closed)));
    });
    drop(held);
    assert!(matches!(producer.try_take(), Err(TakeError::Closed)));
    assert!(matches!(producer.take(), Err(TakeError::Closed)));
    eventually("the thread has ended", || !has_thread());
}

#[test]
fn tasks_and_threads_lose_no_wakeup() {
    const TURNS: usize = 3000;
    let producer = producer(3);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..TURNS).for_each(|_| use_briefly(block_on(producer.take_async()).unwrap())));
        }
        for _ in 0..2 {
            scope.spawn(|| (0..TURNS).for_each(|_| use_briefly(producer.take().unwrap())));
        }
        scope.spawn(|| {
            for turn in 0..TURNS {
                // Futures that are dropped after one poll, some of which have their block by then.
                let mut future = Box::pin(producer.take_async());
                let result = block_on(async { poll!(&mut future) });
                assert!(!matches!(result, Poll::Ready(Err(_))), "turn {turn}");
            }
        });
    });
    eventually("the thread has ended", || !has_thread());
    let all: Vec<_> = std::iter::from_fn(|| producer.try_take().unwrap()).collect();
    assert_eq!(all.len(), 3, "no block is lost");
}
