//! The parts that the benchmarks of pools share with those beside other projects.

mod bench_broker;
mod cpu_time;
mod figure_bar;
mod frame;
mod gpu_copies;
mod percentiles;

pub use bench_broker::BenchBroker;
pub use cpu_time::{monotonic_ns, of_process, of_this_thread};
pub use figure_bar::FigureBar;
pub use frame::{FRAME, PAGE, fill, is_whole, stamp_pages};
pub use gpu_copies::GpuCopies;
pub use percentiles::Timings;
