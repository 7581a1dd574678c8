//! A takeover within one process: a keeper that starts nobody, and a cell that is only its link.

use std::path::PathBuf;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{Instant, MapVersion, Timestamp};
use warren_device::PoolFile;
use warren_disk::format::{FormatOptions, LOG_MIN, image};
use warren_proto::control::Report;
use warren_supervisor::{CellState, Stage};

use super::super::start;
use super::*;
use crate::message::{CellStart, FleetPlan, FromCell};

const CELL: CellId = CellId(0);
const EPOCH: Epoch = Epoch(1);

/// The other end of a supervisor's link, what was given to be kept, and the cells' ends of their links.
struct FakeKeeper {
    link: Link,
    kept: BTreeMap<Kept, Vec<OwnedFd>>,
    cells: Vec<(u32, Link)>,
}

impl FakeKeeper {
    fn new() -> (Self, Outbox) {
        let (link, theirs) = Link::pair().expect("pair");
        (Self { link, kept: BTreeMap::new(), cells: Vec::new() }, Outbox::new(theirs))
    }

    /// Does what it was asked for, but for processes.
    fn obey(&mut self) {
        while let Ok(Received::Packet(packet)) = self.link.receive(Wait::No) {
            match ToKeeper::from_bytes(&packet.bytes).expect("a message") {
                ToKeeper::Keep { name } => drop(self.kept.insert(name, packet.fds)),
                ToKeeper::Forget { name } => drop(self.kept.remove(&name)),
                ToKeeper::Spawn { token, .. } => {
                    let link = packet.fds.into_iter().next().expect("a link");
                    self.cells.push((token, Link::new(link, Trust::Fleet)));
                }
                _ => {}
            }
        }
    }

    /// All that is kept, for a supervisor that takes over; no process is left.
    fn hand_over(self, plan: FleetPlan) -> (Link, Outbox, Handover) {
        let (link, theirs) = Link::pair().expect("pair");
        for (&name, fds) in &self.kept {
            let fds: Vec<_> = fds.iter().map(std::os::fd::AsFd::as_fd).collect();
            link.send(&FromKeeper::Kept { name }.to_bytes(), &fds, Wait::No).expect("send");
        }
        let (kept, died) = (self.kept.len() as u32, Instant(0));
        let (wards, stop, predecessors) = (Vec::new(), false, 1);
        let handover = Handover { plan, wards, stop, predecessors, died, kept };
        (link, Outbox::new(theirs), handover)
    }
}

/// A new pool for one cell, in a file of this name.
fn plan(name: &str) -> (PathBuf, FleetPlan) {
    let path = std::env::temp_dir().join(format!("warren-{name}-{}", std::process::id()));
    let options = FormatOptions {
        size_bytes: 32 << 20,
        shards: 1,
        log_bytes: LOG_MIN,
        uuid: [7; 16],
        secret: 1,
        now: Timestamp(0),
        uid: 0,
        gid: 0,
        label: String::new(),
    };
    let file = PoolFile::create(&path, options.size_bytes / BLOCK_SIZE as u64).expect("pool");
    for (block, bytes) in image(&options).expect("format") {
        file.write_blocks(block, &bytes).expect("write");
    }
    let pool = path.as_os_str().as_bytes().into();
    (path, FleetPlan { pool, cells: 1, threads: 1, cache_bytes: 4 << 20 })
}

/// The cell hears how it shall start, and says that it serves.
fn serve(shell: &mut Shell<'_>, keeper: &mut FakeKeeper) {
    keeper.obey();
    let (_, cell) = keeper.cells.last_mut().expect("a cell was asked for");
    let Ok(Received::Packet(start)) = cell.receive(Wait::No) else { panic!("no start") };
    let capability = CellStart::from_bytes(&start.bytes).expect("a start").supervisor;
    let report = Report::Ready { cell: CELL, epoch: EPOCH, map: MapVersion(1) };
    let ready = FromCell::Report { capability, epoch: EPOCH, number: 0, report };
    cell.send(&ready.to_bytes(), &[], Wait::No).expect("send");
    shell.hear_cell(CELL.0).expect("a report");
    assert_eq!(shell.core.stage(), Stage::Serving);
}

#[test]
fn a_start_that_failed_just_before_the_death_is_not_forgotten() {
    let (path, plan) = plan("failed-start");
    let (mut keeper, mut link) = FakeKeeper::new();
    let mut shell = start::open(&mut link, plan.clone()).expect("a pool");
    serve(&mut shell, &mut keeper);
    (shell.cells[0].alive, shell.cells[0].exited) = (false, true);
    let mut effects = Vec::new();
    let lost = Event::CellExited { cell: CELL, epoch: EPOCH };
    shell.core.apply(clock::monotonic(), clock::wall(), lost, &mut effects);
    assert!(effects.contains(&Effect::Restart { cell: CELL, epoch: Epoch(2) }));
    shell.note(&effects).expect("a note");
    // It cannot enter, for the name of its mailbox is taken.
    shell.follow(effects).expect("another note");
    assert!(!shell.pending.is_empty(), "the core has not heard that it failed");
    drop(shell);
    keeper.obey();
    assert_eq!(keeper.cells.len(), 1);
    let (_link, mut link, handover) = keeper.hand_over(plan);
    let next = take_over(&mut link, handover).expect("an estate");
    assert_eq!(next.core.status().cells[0].state, CellState::Lost);
    next.visitors.remove_door();
    std::fs::remove_file(path).expect("cleanup");
}
