//! Measurements, printed as the tables of docs/gpu.md.

use super::*;
use copies::DriverHostMemory;

const GIB: usize = 1 << 30;
const ROUNDS: usize = 7;

pub(super) fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn seconds(work: impl FnOnce()) -> f64 {
    let began = Instant::now();
    work();
    began.elapsed().as_secs_f64()
}

/// Returns the median rate of `work` over several rounds, in GB/s. The first round does not count.
fn speed(bytes: usize, mut work: impl FnMut()) -> f64 {
    work();
    bytes as f64 / median((0..ROUNDS).map(|_| seconds(&mut work)).collect()) / 1e9
}

#[test]
#[ignore = "needs a GPU"]
fn registered_memory_is_as_fast_as_the_drivers_own() {
    const BYTES: usize = 512 * MIB;
    let gpu = gpu();
    let device = GpuMemory::new(BYTES);
    let own = DriverHostMemory::new(BYTES);
    let mut rows = Vec::new();
    let copy = |at| {
        device.copy_in(at, BYTES);
        device.finish();
    };
    for (name, pages) in [
        ("4 KiB", Pages::Small),
        ("transparent 2 MiB", Pages::Transparent),
        ("2 MiB of the pool", Pages::Huge2M),
    ] {
        let _pool = EnlargedHugePagePool::of(BYTES);
        let Ok(buffer) = buffer(BYTES, pages) else {
            println!("no {name} pages here");
            continue;
        };
        let pageable = speed(BYTES, || copy(whole(&buffer).start()));
        let registration = Registration::new(&gpu, whole(&buffer), Access::READ).expect("mapped");
        let (registered, drivers) =
            (speed(BYTES, || copy(whole(&buffer).start())), speed(BYTES, || copy(own.at())));
        registration.deregister().expect("registered");
        rows.push((name, pageable, registered, drivers));
    }
    println!(
        "\n| 512 MiB to the GPU, buffer on pages of | not registered | registered | cuMemHostAlloc | ratio |"
    );
    println!("| --- | --- | --- | --- | --- |");
    for (name, pageable, registered, drivers) in rows {
        let ratio = registered / drivers;
        println!("| {name} | {pageable:.1} GB/s | {registered:.1} GB/s | {drivers:.1} GB/s | {ratio:.3} |");
        assert!(ratio >= 0.98, "{name}");
    }
}

/// The kernel's pool of huge pages, enlarged by `bytes` if this process may. Dropping it restores
/// the pool.
struct EnlargedHugePagePool(Option<String>);

const POOL: &str = "/proc/sys/vm/nr_hugepages";

impl EnlargedHugePagePool {
    fn of(bytes: usize) -> EnlargedHugePagePool {
        let before = std::fs::read_to_string(POOL).unwrap_or_default().trim().to_owned();
        let more = before.parse::<usize>().unwrap_or(0) + bytes / (2 << 20) + 16;
        let raised = std::fs::write(POOL, more.to_string()).is_ok();
        EnlargedHugePagePool(raised.then_some(before))
    }
}

impl Drop for EnlargedHugePagePool {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = std::fs::write(POOL, before);
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn registering_one_gib_is_measured() {
    let gpu = gpu();
    println!("\n| registering 1 GiB, pages of | calls at the same time | register | end |");
    println!("| --- | --- | --- | --- |");
    for (name, pages) in [
        ("4 KiB", Pages::Small),
        ("transparent 2 MiB", Pages::Transparent),
        ("2 MiB of the pool", Pages::Huge2M),
    ] {
        let _pool = EnlargedHugePagePool::of(GIB);
        let buffer = match buffer(GIB, pages) {
            Ok(buffer) => buffer,
            Err(error) => {
                println!("| {name} | not here: {error} | | |");
                continue;
            }
        };
        for threads in [1, 2, 4, 8] {
            let part = GIB / threads;
            let (mut register, mut end) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                let mut parts: Vec<Option<Registration<CudaHost>>> = (0..threads).map(|_| None).collect();
                register.push(seconds(|| {
                    each(&mut parts, |i, place| {
                        let span = span(whole(&buffer).start() + i * part, part);
                        *place = Some(Registration::new(&gpu, span, Access::WRITE).expect("mapped"));
                    });
                }));
                end.push(seconds(|| each(&mut parts, |_, place| drop(place.take()))));
            }
            let (register, end) = (median(register) * 1e3, median(end) * 1e3);
            println!("| {name} | {threads} | {register:.1} ms | {end:.1} ms |");
        }
    }
}

fn each<T: Send>(places: &mut [T], work: impl Fn(usize, &mut T) + Sync) {
    let work = &work;
    std::thread::scope(|scope| {
        for (i, place) in places.iter_mut().enumerate() {
            scope.spawn(move || work(i, place));
        }
    });
}

#[test]
#[ignore = "needs a GPU"]
fn registering_small_ranges_is_measured() {
    const TIMES: usize = 200;
    let gpu = gpu();
    println!("\n| registering, 4 KiB pages | for writing | for reading | end |");
    println!("| --- | --- | --- | --- |");
    for (name, bytes) in [("4 KiB", PAGE), ("64 KiB", 16 * PAGE), ("1 MiB", MIB), ("16 MiB", 16 * MIB)] {
        let area = GuardedMapping::new(bytes / PAGE);
        let (mut register, mut end) = ([Vec::new(), Vec::new()], Vec::new());
        for _ in 0..TIMES {
            for (access, samples) in [Access::WRITE, Access::READ].into_iter().zip(&mut register) {
                let mut registration = None;
                samples.push(seconds(|| {
                    registration = Registration::new(&gpu, span(area.at(), bytes), access).ok();
                }));
                end.push(seconds(|| registration.expect("mapped").deregister().expect("registered")));
            }
        }
        let [write, read] = register.map(|samples| median(samples) * 1e6);
        println!("| {name} | {write:.0} µs | {read:.0} µs | {:.0} µs |", median(end) * 1e6);
    }
}

/// Sends 64 buffers of the user repeatedly; the test waits for each round as a whole.
#[test]
#[ignore = "needs a GPU"]
fn repeated_sends_are_measured() {
    const MANY: usize = 64;
    let gpu = gpu();
    let device = GpuMemory::new(MIB);
    let areas: Vec<GuardedMapping> = (0..MANY).map(|_| GuardedMapping::new(MIB / PAGE)).collect();
    let own: Vec<DriverHostMemory> = (0..MANY).map(|_| DriverHostMemory::new(MIB)).collect();
    let drivers = |device: &GpuMemory| {
        for memory in &own {
            device.copy_in(memory.at(), MIB);
        }
        device.finish();
    };
    let budget = Budget::new(MANY).bytes(MANY * MIB);
    let mut rows = Vec::new();
    let mut row = |name: &str, work: &mut dyn FnMut()| {
        let ours = speed(MANY * MIB, work);
        rows.push((name.to_owned(), ours, speed(MANY * MIB, || drivers(&device))));
    };
    row("not registered", &mut || {
        for area in &areas {
            device.copy_in(area.at(), MIB);
        }
        device.finish();
    });
    for (name, access) in
        [("registered for each send, for reading", Access::READ), ("the same, for writing", Access::WRITE)]
    {
        row(name, &mut || {
            for area in &areas {
                let registration = Registration::new(&gpu, span(area.at(), MIB), access).expect("mapped");
                device.copy_in(area.at(), MIB);
                device.finish();
                drop(registration);
            }
        });
    }
    for (name, monitor) in
        [("cache, explicit", MonitorMode::Explicit), ("cache, strict", MonitorMode::Strict)]
    {
        let cache = RegistrationCache::new(gpu.clone(), budget, monitor).expect("with room");
        row(name, &mut || {
            let leases: Vec<_> = areas
                .iter()
                .map(|area| {
                    let lease = cache.get(area.pointer(), MIB, Access::READ).expect("room for all");
                    device.copy_in(area.at(), MIB);
                    lease
                })
                .collect();
            device.finish();
            drop(leases);
        });
        assert_eq!(cache.stats().misses, MANY as u64);
    }
    println!("\n| 64 buffers of 1 MiB, sent again and again | GB/s | from cuMemHostAlloc | ratio |");
    println!("| --- | --- | --- | --- |");
    for (name, ours, theirs) in rows {
        let ratio = ours / theirs;
        println!("| {name} | {ours:.1} | {theirs:.1} | {ratio:.3} |");
        assert!(ratio >= 0.98 || !name.starts_with("cache"), "{name}");
    }
}
