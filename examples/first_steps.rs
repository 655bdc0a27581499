//! Builds a table in one rank of the host and reads it in all of them.
//!
//! ```text
//! # four ranks
//! hostbuf run -n 4 --launcher local --size 1M -- target/debug/examples/first_steps
//! # one rank, without a launcher
//! target/debug/examples/first_steps
//! ```

use hostbuf::job::{Collective, Local, Solo};
use hostbuf::{BufferOptions, HostBuffer, Map};

fn main() -> hostbuf::Result<()> {
    // Under `hostbuf run` the buffer exists before `main`. A program that runs by itself allocates
    // one.
    let (group, buffer): (Box<dyn Collective>, _) = match HostBuffer::is_launched() {
        true => (Box::new(Local::from_env()?), HostBuffer::attach()?),
        false => (Box::new(Solo), HostBuffer::allocate(&Solo, BufferOptions::new(1 << 20))?),
    };
    // The closure runs in one rank of the host. All ranks get a reference to the map.
    let squares = buffer.initialize(|arena| {
        let mut map = Map::with_hasher_in(Default::default(), arena);
        map.extend((0..1000u64).map(|n| (n, n * n)));
        arena.place(map)
    })?;
    // From here on a write to the buffer faults, in every rank.
    buffer.freeze(&*group)?;
    println!("rank {}: the map is at {:p}, 31 squared is {}", group.rank(), squares, squares[&31]);
    Ok(())
}
