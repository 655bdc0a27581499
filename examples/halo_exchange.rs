//! Heat that spreads over a plate: a five-point stencil on a grid of blocks, one for each rank. In
//! every step each rank sends the edges of its block to its neighbours through channels. The
//! channels are made once, and the edges are sent in place, so the memory is registered once.
//! Without RDMA the edges are sent by MPI.
//!
//! ```text
//!   mpirun ... halo_exchange [--size ROWSxCOLUMNS] [--steps N]
//! ```
//!
//! In the end the first rank computes the whole plate by itself, and every rank compares its block
//! bit by bit.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use hostbuf::job::{Collective, Mpi, Reduce};
use hostbuf::{Error, Result};
#[cfg(feature = "rdma")]
use hostbuf_rdma::{Channel, ChannelOptions, PeerId, Sending, Tag};
use mpi::request::WaitGuard;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, Destination, Source};

const USAGE: &str = "\
usage: halo_exchange [--size ROWSxCOLUMNS] [--steps N]

  --size ROWSxCOLUMNS   of the plate (1024x4096)
  --steps N             how many steps are computed (50)";

fn main() -> ExitCode {
    let arguments = arguments();
    let _universe = mpi::initialize();
    let world = SimpleCommunicator::world();
    match arguments.and_then(|(size, steps)| run(&world, size, steps)) {
        Ok(said) => {
            if world.rank() == 0 {
                println!("{said}");
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("halo_exchange: rank {}: {error}", world.rank());
            ExitCode::FAILURE
        }
    }
}

fn arguments() -> Result<([usize; 2], usize)> {
    let invalid = |what: String| Error::Invalid { what: format!("{what}\n\n{USAGE}") };
    let (mut size, mut steps) = ([1024, 4096], 50);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value =
            words.next().ok_or_else(|| invalid(format!("\"{word}\" is no option, or lacks its value")))?;
        match &*word {
            "--size" => {
                let pair = value.split_once('x').and_then(|(r, c)| Some([r.parse().ok()?, c.parse().ok()?]));
                let sensible = |size: &[usize; 2]| size.iter().all(|&n| (1..=1 << 16).contains(&n));
                size = pair
                    .filter(sensible)
                    .ok_or_else(|| invalid(format!("--size {value}: as in 1024x4096")))?;
            }
            "--steps" => steps = value.parse().map_err(|_| invalid(format!("--steps {value}: a number")))?,
            _ => return Err(invalid(format!("\"{word}\": no such option"))),
        }
    }
    Ok((size, steps))
}

fn run(world: &SimpleCommunicator, size: [usize; 2], steps: usize) -> Result<String> {
    let group = Mpi::gentle(world);
    let cut = Cut::of(size, group.size(), group.rank())?;
    let way = Transport::find(world, &group, &cut.neighbours())?;
    let mut plate = Plate::new(size, cut.block.clone());
    let begun = Instant::now();
    let mut exchanging = Duration::ZERO;
    for _ in 0..steps {
        let halos = Instant::now();
        way.exchange(&mut plate.halos(&cut))?;
        exchanging += halos.elapsed();
        plate.step();
    }
    let took = begun.elapsed();
    let whole = [0..size[0], 0..size[1]];
    let mut alone = Plate::new(size, whole.clone());
    if group.rank() == 0 {
        (0..steps).for_each(|_| alone.step());
    }
    for row in whole[0].clone() {
        group.broadcast(bytemuck::cast_slice_mut(alone.row_mut(row)), 0)?;
    }
    let [rows, columns] = &cut.block;
    let same = |row: usize| plate.row(row - rows.start) == &alone.row(row)[columns.clone()];
    let mut wrong = [rows.clone().filter(|&row| !same(row)).count() as u64];
    group.all_reduce(&mut wrong, Reduce::Sum)?;
    if wrong[0] > 0 {
        let why = format!("{} rows are not what one process has computed", wrong[0]);
        return Err(Error::Collective { operation: "halo_exchange", why });
    }
    Ok(format!(
        "{steps} steps of {}x{} on {}x{} ranks in {took:.1?}, {exchanging:.1?} of it for halos {way}; all blocks are bit by bit what one \
         process has computed",
        size[0], size[1], cut.grid[0], cut.grid[1]
    ))
}

/// The division of the plate into a grid of blocks, as square as possible.
struct Cut {
    grid: [usize; 2],
    at: [usize; 2],
    /// The rows and columns of this rank's block.
    block: [std::ops::Range<usize>; 2],
}

/// The direction of a neighbour.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Above,
    Below,
    Left,
    Right,
}

impl Cut {
    fn of(size: [usize; 2], ranks: usize, rank: usize) -> Result<Cut> {
        let rows = (1..=ranks).filter(|n| ranks.is_multiple_of(*n)).rfind(|n| n * n <= ranks).unwrap_or(1);
        let grid = [rows, ranks / rows];
        if grid[0] > size[0] || grid[1] > size[1] {
            let [rows, columns] = size;
            let what =
                format!("a plate of {rows}x{columns} for {}x{} ranks: each needs a cell", grid[0], grid[1]);
            return Err(Error::Invalid { what });
        }
        let at = [rank / grid[1], rank % grid[1]];
        let part = |d: usize| size[d] * at[d] / grid[d]..size[d] * (at[d] + 1) / grid[d];
        Ok(Cut { grid, at, block: [part(0), part(1)] })
    }

    fn neighbour(&self, side: Side) -> Option<usize> {
        let ([row, column], [_, width]) = (self.at, self.grid);
        let (row, column) = match side {
            Side::Above => (row.checked_sub(1)?, column),
            Side::Below => (row + 1, column),
            Side::Left => (row, column.checked_sub(1)?),
            Side::Right => (row, column + 1),
        };
        (row < self.grid[0] && column < width).then_some(row * width + column)
    }

    /// Lists the existing neighbours, in a fixed order.
    fn sides(&self) -> impl Iterator<Item = (Side, usize)> {
        let all = [Side::Above, Side::Below, Side::Left, Side::Right];
        all.into_iter().filter_map(|side| Some((side, self.neighbour(side)?)))
    }

    fn neighbours(&self) -> Vec<usize> {
        self.sides().map(|(_, rank)| rank).collect()
    }
}

/// A block of the plate with a frame of one cell: halos, or the cold edge of the plate.
struct Plate {
    rows: usize,
    width: usize,
    /// The cells row by row, including the frame. The left and right halos are stored beside it.
    cells: Vec<f64>,
    next: Vec<f64>,
    /// The left and right columns in contiguous memory, for sending and receiving.
    columns: [Column; 2],
}

struct Column {
    edge: Vec<f64>,
    halo: Vec<f64>,
}

/// The cells to send to a neighbour, and the memory for the cells from it.
struct Halo<'p> {
    edge: &'p [f64],
    halo: &'p mut [f64],
}

impl Plate {
    fn new(size: [usize; 2], block: [std::ops::Range<usize>; 2]) -> Plate {
        let (rows, columns) = (block[0].len(), block[1].len());
        let width = columns + 2;
        let mut cells = vec![0.0; (rows + 2) * width];
        for (row, y) in block[0].clone().enumerate() {
            for (column, x) in block[1].clone().enumerate() {
                // The plate is hot in the middle, with a pattern that differs everywhere.
                let far = y.abs_diff(size[0] / 2).max(x.abs_diff(size[1] / 2));
                let hot = if far < size[0].min(size[1]) / 4 + 1 { 100.0 } else { 0.0 };
                cells[(row + 1) * width + column + 1] = hot + ((y * 31 + x * 17) % 101) as f64 / 7.0;
            }
        }
        let column = || Column { edge: vec![0.0; rows], halo: vec![0.0; rows] };
        Plate { rows, width, next: cells.clone(), cells, columns: [column(), column()] }
    }

    fn row(&self, row: usize) -> &[f64] {
        let start = (row + 1) * self.width;
        &self.cells[start + 1..start + self.width - 1]
    }

    fn row_mut(&mut self, row: usize) -> &mut [f64] {
        let start = (row + 1) * self.width;
        &mut self.cells[start + 1..start + self.width - 1]
    }

    /// Returns the halo of each neighbour, in the order of [`Cut::sides`]. Rows are contiguous and
    /// are sent from the plate; columns are copied.
    fn halos(&mut self, cut: &Cut) -> Vec<Halo<'_>> {
        let (rows, width) = (self.rows, self.width);
        let inner = 1..width - 1;
        for (column, at) in self.columns.iter_mut().zip([1, width - 2]) {
            column
                .edge
                .iter_mut()
                .enumerate()
                .for_each(|(row, cell)| *cell = self.cells[(row + 1) * width + at]);
        }
        let (above, rest) = self.cells.split_at_mut(width);
        let (own, below) = rest.split_at_mut(rows * width);
        let [left, right] = &mut self.columns;
        let mut halos = Vec::with_capacity(4);
        let has = |side| cut.neighbour(side).is_some();
        let own = &*own;
        let last = (rows - 1) * width;
        if has(Side::Above) {
            halos.push(Halo { edge: &own[inner.clone()], halo: &mut above[inner.clone()] });
        }
        if has(Side::Below) {
            halos.push(Halo { edge: &own[last + 1..last + width - 1], halo: &mut below[inner] });
        }
        for (side, column) in [(Side::Left, left), (Side::Right, right)] {
            if has(side) {
                halos.push(Halo { edge: &column.edge, halo: &mut column.halo });
            }
        }
        halos
    }

    /// Computes one time step, with the same arithmetic in the same order in every cell.
    fn step(&mut self) {
        let width = self.width;
        for (column, at) in self.columns.iter().zip([0, width - 1]) {
            for (row, cell) in column.halo.iter().enumerate() {
                self.cells[(row + 1) * width + at] = *cell;
            }
        }
        for row in 1..=self.rows {
            let [above, own, below] =
                [row - 1, row, row + 1].map(|row| &self.cells[row * width..(row + 1) * width]);
            let next = &mut self.next[row * width..(row + 1) * width];
            for at in 1..width - 1 {
                next[at] =
                    own[at] + 0.2 * (above[at] + below[at] + own[at - 1] + own[at + 1] - 4.0 * own[at]);
            }
        }
        std::mem::swap(&mut self.cells, &mut self.next);
    }
}

/// The transport of the halos.
enum Transport<'w> {
    /// A channel to each neighbour.
    #[cfg(feature = "rdma")]
    Channels(Vec<Channel>),
    /// The ranks of the neighbours, and the reason why RDMA is not used.
    Mpi(&'w SimpleCommunicator, Vec<usize>, String),
}

impl<'w> Transport<'w> {
    #[cfg(feature = "rdma")]
    fn find(world: &'w SimpleCommunicator, group: &Mpi, neighbours: &[usize]) -> Result<Transport<'w>> {
        let wanted: Vec<_> = neighbours.iter().map(|&rank| (PeerId(rank), Tag(0))).collect();
        match Channel::connect(group, &wanted, ChannelOptions::default()) {
            Ok(channels) => Ok(Transport::Channels(channels)),
            Err(Error::Unsupported { why, .. }) => Ok(Transport::Mpi(world, neighbours.to_vec(), why)),
            Err(error) => Err(error),
        }
    }

    #[cfg(not(feature = "rdma"))]
    fn find(world: &'w SimpleCommunicator, _: &Mpi, neighbours: &[usize]) -> Result<Transport<'w>> {
        Ok(Transport::Mpi(world, neighbours.to_vec(), "built without it".into()))
    }

    fn exchange<'p>(&self, halos: &mut [Halo<'p>]) -> Result<()> {
        match self {
            #[cfg(feature = "rdma")]
            Transport::Channels(channels) => {
                let edges: Vec<&'p [f64]> = halos.iter().map(|halo| halo.edge).collect();
                let begin = |(channel, edge)| Channel::begin_send(channel, bytemuck::cast_slice(edge));
                let sent = channels.iter().zip(edges).map(begin).collect::<Result<Vec<_>>>()?;
                for (channel, halo) in channels.iter().zip(halos) {
                    channel.receive(bytemuck::cast_slice_mut(halo.halo))?;
                }
                sent.into_iter().try_for_each(Sending::wait)
            }
            Transport::Mpi(world, neighbours, _) => {
                let edges: Vec<&'p [f64]> = halos.iter().map(|halo| halo.edge).collect();
                let peer = |&rank: &usize| world.process_at_rank(rank as i32);
                mpi::request::scope(|scope| {
                    let begin = |(rank, edge)| WaitGuard::from(peer(rank).immediate_send(scope, edge));
                    let sent: Vec<_> = neighbours.iter().zip(edges).map(begin).collect();
                    for (rank, halo) in neighbours.iter().zip(halos) {
                        peer(rank).receive_into(&mut *halo.halo);
                    }
                    drop(sent);
                });
                Ok(())
            }
        }
    }
}

impl std::fmt::Display for Transport<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            #[cfg(feature = "rdma")]
            Transport::Channels(channels) => {
                let of_rank = channels.first().map(Channel::registrations).unwrap_or_default();
                write!(f, "over RDMA ({} registrations, found again {} times)", of_rank.misses, of_rank.hits)
            }
            Transport::Mpi(_, _, why) => write!(f, "over MPI (no RDMA: {why})"),
        }
    }
}
