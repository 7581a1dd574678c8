//! Tables 5.2 and 7.3: operations on a file near and far.
//!
//! Hive's programs run on a cell, so that a file is local or remote. Warren's run on none: a client
//! asks each cell directly, and the kernel of a mount keeps pages. So *far* has two meanings here,
//! and each row says which it has:
//!
//! ```text
//! between cells    near: the file is on the cell of its directory
//!                  far:  its name is on one cell and the file on another; a client of the library
//! on a mount       near: the kernel has the pages in its page cache
//!                  far:  the kernel must ask the front, and the front a cell, which has them
//! ```
//!
//! In both, far pages are in the cell's memory, as in the paper. A fleet of two cells serves all.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use rustix::fs::{Advice, fadvise};
use serde::{Deserialize, Serialize};
use warren_base::limits::BLOCK_SIZE;
use warren_base::{CellId, Errno};

use super::client::{Client, OpenFile, failed};
use super::mapping::Mapping;
use crate::contender::fuse::KeptMount;
use crate::error::{BenchError, system};
use crate::ground::{Ground, Interruption};
use crate::sample::{Spread, median_ratio, time_batch};

const CELLS: u16 = 2;

/// Bytes of a file that is read or written, as in the paper.
const BYTES: usize = 4 << 20;

/// Faults of a batch, as in the paper.
const FAULTS: usize = 1024;
/// Bytes between the pages that are touched: the kernel maps the neighbours of a page too, and so
/// each fault is on a page of a new neighbourhood.
const STRIDE: usize = 16 * BLOCK_SIZE;

/// Opens, null requests and reads of a page in a round.
const CALLS: u32 = 200;

/// Rounds that are not counted.
const ROUNDS_BEFORE: u32 = 1;

/// An operation near and far.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Crossing {
    pub operation: String,
    /// "between cells" or "on a mount": near and far mean something else in each.
    pub between: String,
    pub near: Spread,
    pub far: Spread,
    /// The median of far by near, of neighbours in time.
    pub ratio: f64,
    pub paper: PaperCrossing,
}

/// A row of table 7.3.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct PaperCrossing {
    pub local_us: f64,
    pub remote_us: f64,
    pub ratio: f64,
}

/// A part of a remote fault.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Part {
    pub name: String,
    pub ns: f64,
    /// The nearest row of table 5.2, in microseconds.
    pub paper_us: Option<f64>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LatencyReport {
    pub crossings: Vec<Crossing>,
    /// Table 5.2: the parts of a fault that a cell serves. The first is the whole.
    pub parts: Vec<Part>,
}

/// Nanoseconds by round.
#[derive(Default)]
struct Times {
    near: Vec<f64>,
    far: Vec<f64>,
}

impl Times {
    /// Measures both, each time the other one first.
    fn add<S>(
        &mut self,
        round: u32,
        subject: &mut S,
        measure: impl Fn(&mut S, bool) -> Result<f64, BenchError>,
    ) -> Result<(), BenchError> {
        let is_far_first = !round.is_multiple_of(2);
        for is_far in [is_far_first, !is_far_first] {
            let ns = measure(subject, is_far)?;
            if round >= ROUNDS_BEFORE {
                if is_far { &mut self.far } else { &mut self.near }.push(ns);
            }
        }
        Ok(())
    }

    fn crossing(&self, operation: &str, between: &str, paper: (f64, f64, f64)) -> Crossing {
        let (local_us, remote_us, ratio) = paper;
        Crossing {
            operation: operation.to_owned(),
            between: between.to_owned(),
            near: Spread::of(&self.near),
            far: Spread::of(&self.far),
            ratio: median_ratio(&self.far, &self.near),
            paper: PaperCrossing { local_us, remote_us, ratio },
        }
    }
}

pub(super) fn measure(
    scratch: &Path,
    rounds: u32,
    interruption: &Interruption,
) -> Result<LatencyReport, BenchError> {
    let ground = Ground::start(scratch, CELLS)?;
    let mount = KeptMount::new(ground.pool(), scratch.join("latency"))?;
    let mut cells = BetweenCells::new(&ground)?;
    let mut mounted = OnMount::new(mount.at(), &mut cells)?;
    let (mut read, mut write, mut open) = (Times::default(), Times::default(), Times::default());
    let (mut mounted_read, mut fault) = (Times::default(), Times::default());
    let (mut null, mut page) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS_BEFORE + rounds {
        interruption.check()?;
        write.add(round, &mut cells, BetweenCells::write)?;
        read.add(round, &mut cells, BetweenCells::read)?;
        open.add(round, &mut cells, BetweenCells::open)?;
        mounted_read.add(round, &mut mounted, OnMount::read)?;
        fault.add(round, &mut mounted, OnMount::fault)?;
        null.push(cells.null()?);
        page.push(cells.page()?);
    }
    let crossings = vec![
        read.crossing("4 MB file read", "between cells", (65_000.0, 76_200.0, 1.2)),
        mounted_read.crossing("4 MB file read", "on a mount", (65_000.0, 76_200.0, 1.2)),
        write.crossing("4 MB file write/extend", "between cells", (83_700.0, 87_300.0, 1.1)),
        open.crossing("open file", "between cells", (148.0, 580.0, 3.9)),
        fault.crossing("page fault", "on a mount", (6.9, 50.7, 7.4)),
    ];
    let parts = parts(&fault, &null, &page);
    Ok(LatencyReport { crossings, parts })
}

/// The parts of a fault that a cell serves, as far as they can be measured from outside.
fn parts(fault: &Times, null: &[f64], page: &[f64]) -> Vec<Part> {
    let median = |times: &[f64]| Spread::of(times).median_ns;
    let (whole, local) = (median(&fault.far), median(&fault.near));
    let (null, page) = (median(null), median(page));
    let part = |name: &str, ns, paper_us| Part { name: name.to_owned(), ns, paper_us };
    vec![
        part("a fault that a cell serves", whole, Some(50.7)),
        part("the kernel: a fault that hits in its page cache", local, Some(6.9)),
        part("the client's request and the cell's answer (a null request)", null, Some(17.3)),
        part("a page: the cell's work and the copy (a read of 4 KiB less that)", page - null, None),
        part("/dev/fuse, the front and wake-ups (the rest)", whole - local - page, None),
    ]
}

/// A near and a far file, in the order of `is_far`.
struct BetweenCells {
    client: Client,
    files: [OpenFile; 2],
    /// The cell of the near file.
    near: CellId,
    buffer: Vec<u8>,
}

impl BetweenCells {
    fn new(ground: &Ground) -> Result<Self, BenchError> {
        let mut client = Client::new(ground)?;
        let (files, near) =
            Self::prepare(&mut client).map_err(failed("make a near and a far file"))?;
        Ok(Self { client, files, near, buffer: vec![0; BYTES] })
    }

    fn prepare(client: &mut Client) -> Result<([OpenFile; 2], CellId), Errno> {
        let [here, there] = client.two_directories()?;
        let near = client.make_file(here, "near")?;
        let mut far = client.make_file(there, "far")?;
        client.rename(&mut far, here)?;
        Ok(([near, far], client.cell_of(here)?))
    }

    fn read(&mut self, is_far: bool) -> Result<f64, BenchError> {
        let (client, file) = (&mut self.client, &self.files[usize::from(is_far)]);
        let read = time_batch(1, |_| client.read(file, &mut self.buffer));
        read.map_err(failed("read 4 MB"))
    }

    fn write(&mut self, is_far: bool) -> Result<f64, BenchError> {
        let (client, file) = (&mut self.client, &self.files[usize::from(is_far)]);
        client.truncate(file).map_err(failed("truncate"))?;
        time_batch(1, |_| client.write(file, BYTES)).map_err(failed("write 4 MB"))
    }

    fn open(&mut self, is_far: bool) -> Result<f64, BenchError> {
        let (client, file) = (&mut self.client, &self.files[usize::from(is_far)]);
        let mut ns = 0.0;
        for _ in 0..CALLS {
            let begun = Instant::now();
            let handle = client.open(file).map_err(failed("open"))?;
            ns += begun.elapsed().as_nanos() as f64;
            client.close(handle).map_err(failed("close"))?;
        }
        Ok(ns / f64::from(CALLS))
    }

    /// The first batch wakes the cell.
    fn null(&mut self) -> Result<f64, BenchError> {
        let (client, cell) = (&mut self.client, self.near);
        let mut batch = || time_batch(CALLS, |_| client.null(cell)).map_err(failed("null"));
        batch().and_then(|_| batch())
    }

    fn page(&mut self) -> Result<f64, BenchError> {
        let (client, file) = (&mut self.client, &self.files[0]);
        let buffer = &mut self.buffer[..BLOCK_SIZE];
        time_batch(CALLS, |_| client.read(file, buffer)).map_err(failed("read a page"))
    }
}

/// Files of the mount whose pages are in the kernel's page cache or not.
struct OnMount {
    whole: File,
    /// It has data only in the pages that are touched.
    mapped: File,
    buffer: Vec<u8>,
}

impl OnMount {
    /// A client of the library writes the files, so that the kernel has none of their pages.
    fn new(at: &Path, cells: &mut BetweenCells) -> Result<Self, BenchError> {
        Self::write_files(&mut cells.client).map_err(failed("write the files of the mount"))?;
        let open = |name: &str| File::open(at.join(name)).map_err(system("open a file"));
        Ok(Self { whole: open("whole")?, mapped: open("mapped")?, buffer: vec![0; BYTES] })
    }

    fn write_files(client: &mut Client) -> Result<(), Errno> {
        let root = warren_proto::InodeRef::ROOT;
        let whole = client.make_file(root, "whole")?;
        client.write(&whole, BYTES)?;
        client.close_file(&whole)?;
        let mapped = client.make_file(root, "mapped")?;
        for page in 0..FAULTS {
            client.write_at(&mapped, (page * STRIDE) as u64, BLOCK_SIZE)?;
        }
        client.close_file(&mapped)
    }

    fn read(&mut self, is_far: bool) -> Result<f64, BenchError> {
        let (file, buffer) = (&self.whole, &mut self.buffer);
        let mut read = || file.read_exact_at(buffer, 0).map_err(system("read 4 MB"));
        if is_far {
            drop_pages(file)?;
        } else {
            read()?;
        }
        time_batch(1, |_| read())
    }

    fn fault(&mut self, is_far: bool) -> Result<f64, BenchError> {
        if is_far {
            drop_pages(&self.mapped)?;
        } else {
            self.touch_all()?;
        }
        self.touch_all()
    }

    /// Nanoseconds a fault.
    fn touch_all(&self) -> Result<f64, BenchError> {
        let mapping = Mapping::new(&self.mapped, FAULTS * STRIDE)?;
        time_batch(FAULTS as u32, |page| {
            std::hint::black_box(mapping.touch(page as usize * STRIDE));
            Ok(())
        })
    }
}

/// Drops the file's pages in the kernel.
fn drop_pages(file: &File) -> Result<(), BenchError> {
    fadvise(file, 0, None, Advice::DontNeed).map_err(system("drop pages of a file"))
}
