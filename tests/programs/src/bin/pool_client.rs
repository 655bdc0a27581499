//! A client of a pool: `pool_client NAME [BLOCKS]` connects as `HOSTBUF_POOL` states, to the broker
//! at the abstract socket NAME, and makes a segment of that many blocks of 1 MiB. It prints a line
//! with the kind of the pool, its identity and the broker's process, and stays until the end of
//! its standard input. If that contains a line, it executes `cat` in its place.

use std::os::unix::process::CommandExt;
use std::process::Command;

use hostbuf_pool::{Pool, PoolOptions, ProducerOptions};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().expect("the name of a socket");
    let options = PoolOptions::from_environment("pool_client").expect("a valid variable").socket(name);
    let pool = match Pool::connect(options) {
        Ok(pool) => pool,
        Err(error) => {
            eprintln!("pool_client: {error}");
            std::process::exit(1);
        }
    };
    let _producer = arguments.next().map(|blocks| {
        let options = ProducerOptions::new(1 << 20, blocks.parse().expect("a number")).stream("stored");
        pool.producer(&options).expect("there is memory")
    });
    let status = pool.status().expect("the broker answers");
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    println!("{:?} {} {}", pool.kind(), pool.id(), status["pid"]);
    if std::io::stdin().read_line(&mut String::new()).is_ok_and(|bytes| bytes > 0) {
        panic!("{}", Command::new("cat").exec());
    }
}
