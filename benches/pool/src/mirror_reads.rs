//! Bare reads by RDMA between two hosts: what the devices can do without a mirror.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use hostbuf_rdma::{FabricOptions, ReadAddress, ReadDevice};
use hostbuf_register::{Access, PinnedAlloc};

/// Opens the nearest device.
pub(crate) fn device() -> Result<ReadDevice, Box<dyn Error>> {
    Ok(ReadDevice::open(FabricOptions::default())?)
}

/// Connects a device with that of the peer of `stream`.
fn connect(
    device: &ReadDevice,
    stream: &mut TcpStream,
) -> Result<hostbuf_rdma::ReadConnection, Box<dyn Error>> {
    let own = device.prepare()?;
    stream.write_all(&own.address().to_bytes())?;
    let mut other = [0; ReadAddress::SIZE];
    stream.read_exact(&mut other)?;
    own.connect(ReadAddress::from_bytes(&other).ok_or("the peer has sent no address")?)?;
    Ok(own)
}

/// Reads the memory of the first peer as often as it says, and answers with the time.
pub(crate) fn serve(device: &ReadDevice, listener: &TcpListener) -> Result<(), Box<dyn Error>> {
    let (mut stream, _) = listener.accept()?;
    let mut connection = connect(device, &mut stream)?;
    let mut request = [0; 32];
    stream.read_exact(&mut request)?;
    let word = |at: usize| u64::from_le_bytes(request[at..at + 8].try_into().expect("8 bytes"));
    let (remote, length, times) = ((word(0), word(8) as u32), word(16) as usize, word(24));
    let memory = PinnedAlloc::new(device.registrar().clone(), Access::WRITE, usize::MAX);
    let mut bytes = memory.allocate(length)?;
    let key = bytes.key();
    let begun = Instant::now();
    for _ in 0..times {
        let until = Instant::now() + Duration::from_secs(60);
        connection = connection.read(&mut bytes, key, remote, until, &|| false)?;
    }
    stream.write_all(&(begun.elapsed().as_nanos() as u64).to_le_bytes())?;
    Ok(())
}

/// Lets the peer read `length` bytes of this process `times` times, and returns its reads per
/// second.
pub(crate) fn measure(
    device: &ReadDevice,
    stream: &mut TcpStream,
    length: usize,
    times: usize,
) -> Result<f64, Box<dyn Error>> {
    let memory = PinnedAlloc::new(device.registrar().clone(), Access::REMOTE_READ, usize::MAX);
    let bytes = memory.allocate(length)?;
    let _connection = connect(device, stream)?;
    for word in [bytes.as_ptr() as u64, bytes.key().rkey.into(), length as u64, times as u64] {
        stream.write_all(&word.to_le_bytes())?;
    }
    let mut time = [0; 8];
    stream.read_exact(&mut time)?;
    Ok(times as f64 / Duration::from_nanos(u64::from_le_bytes(time)).as_secs_f64())
}
