//! Each call of each operation fails once, and nothing remains.

use std::os::fd::AsFd;

use super::fake_driver::{GRANULARITY, OUT_OF_MEMORY, assert_nothing_remains, fake, new_driver};
use crate::{
    CudaContext, CudaError, CudaEvent, CudaStream, DeviceMemory, Driver, GpuAccess, HostAccess, IpcMemory,
    PageLockedMemory, PhysicalMemory, VirtualRange,
};

/// Uses everything that this crate makes.
fn everything(driver: Driver) -> Result<(), CudaError> {
    let gpu = driver.gpus()?.remove(0);
    let context = CudaContext::retain(&gpu)?;
    let (stream, event) = (CudaStream::new(&context)?, CudaEvent::interprocess(&context)?);
    event.record(&stream)?;
    let _after = CudaEvent::after(&stream)?;
    let imported = CudaEvent::import(&context, event.export()?)?;
    stream.wait(&imported)?;
    let (_device, _host) = (DeviceMemory::new(&context, 64)?, PageLockedMemory::new(&context, 64)?);
    let exported = PhysicalMemory::create(&context, GRANULARITY + 1)?;
    let descriptor = exported.export()?;
    let memory = PhysicalMemory::import(&context, descriptor.as_fd(), exported.bytes())?;
    let range = VirtualRange::reserve(&context, memory.bytes(), None)?;
    let _mapped = range.map(memory, &[GpuAccess::read_write(&gpu)])?;
    let _opened = IpcMemory::open(&context, [1; 64])?;
    let current = context.make_current()?;
    let address = current.register_host(0x1000..0x3000, HostAccess::ReadOnly)?;
    assert_eq!(address, 0x1001);
    current.unregister_host(0x1000)
}

#[test]
fn a_call_that_fails_leaves_nothing_behind() {
    let mut failed = 0;
    loop {
        let driver = new_driver(|_| {}).expect("nothing fails");
        fake(|fake| fake.failing_call = Some(failed));
        let result = everything(driver);
        let done = fake(|fake| fake.failing_call.is_some());
        // A registration without RAII ends before the next call, which is its last.
        assert_nothing_remains();
        if done {
            assert_eq!(result, Ok(()));
            break;
        }
        let code = result.expect_err("a call has failed").code();
        assert_eq!(code.map(crate::CudaCode::number), Some(OUT_OF_MEMORY));
        failed += 1;
    }
    assert!(failed > 25, "only {failed} calls have failed");
}
