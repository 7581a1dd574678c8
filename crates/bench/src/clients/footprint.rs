//! The resources of a fleet's processes: memory of their own, descriptors, time on processors.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use warren_runtime::status;

use crate::error::{BenchError, system};

/// The processes of a fleet, by name.
pub(super) struct Processes(Vec<(String, u32)>);

impl Processes {
    pub(super) fn of(pool: &Path) -> Result<Self, BenchError> {
        let status = status(pool)?;
        let mut processes = vec![
            ("keeper".to_owned(), status.keeper_pid),
            ("supervisor".to_owned(), status.supervisor_pid),
        ];
        let cells = status.cells.iter().map(|cell| (format!("cell {}", cell.cell), cell.pid));
        processes.extend(cells);
        Ok(Self(processes))
    }
}

/// The resources of one process at one moment.
#[derive(Clone, Debug)]
struct Taken {
    name: String,
    anonymous_bytes: u64,
    page_table_bytes: u64,
    descriptors: u64,
    cpu_ns: u64,
}

/// The resources of a fleet's processes at one moment.
pub(super) struct Footprint(Vec<Taken>);

impl Footprint {
    pub(super) fn of(processes: &Processes) -> Result<Self, BenchError> {
        processes
            .0
            .iter()
            .map(|(name, pid)| Taken::of(name, *pid))
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

impl Footprint {
    /// Time on processors of all processes since their start.
    pub(super) fn cpu_ns(&self) -> u64 {
        self.0.iter().map(|taken| taken.cpu_ns).sum()
    }
}

impl Taken {
    fn of(name: &str, pid: u32) -> Result<Self, BenchError> {
        let doing = "look at a process of the fleet";
        let file =
            |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).map_err(system(doing));
        let status = file("status")?;
        let kib = |field: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(field));
            let number = line.and_then(|line| line.split_whitespace().next());
            1024 * number.and_then(|number| number.parse().ok()).unwrap_or(0_u64)
        };
        let entries =
            |name: &str| fs::read_dir(format!("/proc/{pid}/{name}")).map_err(system(doing));
        let descriptors = entries("fd")?.count() as u64;
        let mut cpu_ns = 0;
        for task in entries("task")?.flatten() {
            // The first field is the time on a processor. A thread that has ended has none.
            let times = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            cpu_ns += times.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0_u64);
        }
        let (anonymous_bytes, page_table_bytes) = (kib("RssAnon:"), kib("VmPTE:"));
        Ok(Self { name: name.to_owned(), anonymous_bytes, page_table_bytes, descriptors, cpu_ns })
    }
}

/// The cost of idle clients.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Cost {
    /// Bytes a client that are allocated of its segments and the cells' for it.
    pub segment_bytes: f64,
    pub processes: Vec<ProcessCost>,
    /// Bytes a client of all that: segments, memory and page tables of the fleet's processes.
    pub bytes: f64,
    /// Time on processors of all processes while all clients were idle, in percent of one.
    pub cpu_percent: f64,
}

/// The cost of idle clients in a process of the fleet: bytes and descriptors a client.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ProcessCost {
    pub process: String,
    pub anonymous_bytes: f64,
    pub page_table_bytes: f64,
    pub descriptors: f64,
    /// Descriptors of the process with all clients.
    pub descriptors_in_all: u64,
    pub cpu_percent: f64,
}

impl Cost {
    /// `before` and `after` the clients were admitted; `watched` for so many seconds.
    pub(super) fn new(
        (before, after): (&Footprint, &Footprint),
        (asleep, watched, seconds): (&Footprint, &Footprint, f64),
        segment_bytes: f64,
        clients: u32,
    ) -> Self {
        let a_client =
            |before: u64, after: u64| (after as f64 - before as f64) / f64::from(clients);
        let moments = before.0.iter().zip(&after.0).zip(asleep.0.iter().zip(&watched.0));
        let processes: Vec<ProcessCost> = moments
            .map(|((before, after), (asleep, watched))| ProcessCost {
                process: before.name.clone(),
                anonymous_bytes: a_client(before.anonymous_bytes, after.anonymous_bytes),
                page_table_bytes: a_client(before.page_table_bytes, after.page_table_bytes),
                descriptors: a_client(before.descriptors, after.descriptors),
                descriptors_in_all: after.descriptors,
                cpu_percent: (watched.cpu_ns - asleep.cpu_ns) as f64 / seconds / 1e7,
            })
            .collect();
        let own = processes.iter().map(|it| it.anonymous_bytes + it.page_table_bytes);
        let bytes = segment_bytes + own.sum::<f64>();
        let cpu_percent = processes.iter().map(|it| it.cpu_percent).sum();
        Self { segment_bytes, processes, bytes, cpu_percent }
    }
}
