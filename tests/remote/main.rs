//! Remote objects of servers that others use: nginx, with ranges and TLS, and the S3 servers of
//! rclone and s3s-fs. A server of the tests cuts at random moments.

mod certificates;
mod cutting_server;
mod local_server;
mod nginx;
mod presigned_address;
mod random_cuts;
mod relay;
mod reserved_port;
mod s3;
mod s3_changes;
mod s3_outages;
mod s3_ranges;
mod s3_server;
mod stored_object;

use std::sync::Arc;

use hostbuf_staging::{
    BorrowedMemory, DeviceTarget, HostDevice, HostMemory, RemoteFile, RemoteOptions, RequestMode, Ring,
    RingOptions, WriteAt,
};

/// Returns bytes that differ from one place to the next.
fn content(bytes: usize) -> Vec<u8> {
    let word = |number: u64| number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
    (0..bytes.div_ceil(8) as u64).flat_map(word).take(bytes).collect()
}

/// A sink that compares its bytes with the expected ones.
struct ExpectedBytes(Vec<u8>);

impl WriteAt for ExpectedBytes {
    fn name(&self) -> String {
        "the expected bytes".into()
    }

    fn write_at(&self, from: &[u8], offset: u64) -> std::io::Result<usize> {
        let same = self.0.get(offset as usize..).is_some_and(|rest| rest.starts_with(from));
        if same { Ok(from.len()) } else { Err(std::io::ErrorKind::InvalidData.into()) }
    }
}

/// Reads an object by a ring, and compares all bytes.
fn compare(file: &RemoteFile, content: &[u8]) {
    assert_eq!(file.bytes(), content.len() as u64);
    let options = RingOptions::new().workers(4);
    let memory = HostMemory::new(options.bytes().expect("valid options"));
    let ring = Ring::new(HostDevice::new(), options, memory).expect("valid options");
    let target = DeviceTarget::new(Arc::new(BorrowedMemory::from(HostMemory::new(content.len()))));
    file.pread(&ring, target.clone(), 0).wait().expect("it is read");
    ring.write(target, Arc::new(ExpectedBytes(content.to_vec())), 0).wait().expect("all bytes are equal");
}

/// Returns options for each way to make requests.
fn both_modes() -> [RemoteOptions; 2] {
    [RequestMode::Easy, RequestMode::reactors(2, 4)].map(|mode| RemoteOptions::new().mode(mode))
}
