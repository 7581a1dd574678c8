//! A takeover within one process, with a keeper that starts no process and a cell that is only a
//! link.

use std::path::{Path, PathBuf};

use warren_base::limits::BLOCK_SIZE;
use warren_base::{Instant, MapVersion, Timestamp};
use warren_device::PoolFile;
use warren_disk::format::{FormatOptions, LOG_MIN, image};
use warren_mailbox::Capability;
use warren_proto::Wire;
use warren_proto::control::Report;
use warren_supervisor::{CellState, Stage};

use super::super::start;
use super::*;
use crate::clients::Clients;
use crate::link::{Received, Wait};
use crate::message::{CellStart, FleetPlan, FromCell};

const CELL: CellId = CellId(0);
const EPOCH: Epoch = Epoch(1);

/// The other end of a supervisor's link, the descriptors kept, and the cells' ends of their links.
struct FakeKeeper {
    link: Link,
    kept: BTreeMap<Kept, Vec<OwnedFd>>,
    cells: Vec<Link>,
    /// Tokens of the processes to kill.
    killed: Vec<u32>,
}

impl FakeKeeper {
    fn new() -> (Self, Outbox) {
        let (link, theirs) = Link::pair().expect("pair");
        let (kept, cells, killed) = (BTreeMap::new(), Vec::new(), Vec::new());
        (Self { link, kept, cells, killed }, Outbox::new(theirs))
    }

    /// Executes requests, except those for processes.
    fn execute(&mut self) {
        while let Ok(Received::Packet(packet)) = self.link.receive(Wait::No) {
            match ToKeeper::from_bytes(&packet.bytes).expect("a message") {
                ToKeeper::Keep { name } => drop(self.kept.insert(name, packet.fds)),
                ToKeeper::Forget { name } => drop(self.kept.remove(&name)),
                ToKeeper::Spawn { .. } => {
                    let link = packet.fds.into_iter().next().expect("a link");
                    self.cells.push(Link::new(link, Trust::Fleet));
                }
                ToKeeper::Kill { token } => self.killed.push(token),
                _ => {}
            }
        }
    }

    /// The handover to a supervisor that takes over. No process is left.
    fn hand_over(self, plan: FleetPlan) -> (Link, Outbox, Handover) {
        let (link, theirs) = Link::pair().expect("pair");
        for (&name, fds) in &self.kept {
            let fds: Vec<_> = fds.iter().map(std::os::fd::AsFd::as_fd).collect();
            link.send(&FromKeeper::Kept { name }.to_bytes(), &fds, Wait::No).expect("send");
        }
        let (kept, died) = (self.kept.len() as u32, Instant(0));
        let (children, stop, predecessors) = (Vec::new(), false, 1);
        let handover =
            Handover { plan, children, stop, predecessors, died, kept, in_tables: false };
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
        reserved: false,
        kept_percent: None,
    };
    let file = PoolFile::create(&path, options.size_bytes / BLOCK_SIZE as u64).expect("pool");
    for (block, bytes) in image(&options).expect("format") {
        file.write_blocks(block, &bytes).expect("write");
    }
    let pool = path.as_os_str().as_bytes().into();
    (
        path,
        FleetPlan {
            pool,
            cells: 1,
            threads: 1,
            cache_bytes: 4 << 20,
            clients: Clients::Own,
            read_only: false,
            ends_with_mounts: false,
            log: (*b"stderr").into(),
        },
    )
}

/// The cell receives its start message and reports that it serves. Returns the capability of its
/// reports.
fn serve(supervisor: &mut SupervisorLoop<'_>, keeper: &mut FakeKeeper) -> Capability {
    keeper.execute();
    let cell = keeper.cells.last_mut().expect("a cell was asked for");
    let Ok(Received::Packet(start)) = cell.receive(Wait::No) else { panic!("no start") };
    let capability = CellStart::from_bytes(&start.bytes).expect("a start").supervisor;
    send_report(
        cell,
        capability,
        0,
        Report::Ready { cell: CELL, epoch: EPOCH, map: MapVersion(1) },
    );
    supervisor.receive_from_cell(CELL).expect("a report");
    assert_eq!(supervisor.core.stage(), Stage::Serving);
    capability
}

fn send_report(cell: &Link, capability: Capability, number: u64, report: Report) {
    let said = FromCell::Report { capability, epoch: EPOCH, number, report };
    cell.send(&said.to_bytes(), &[], Wait::No).expect("send");
}

/// Removes the test's files.
fn clear_up(supervisor: &SupervisorLoop<'_>, path: &Path) {
    supervisor.connections.remove_socket();
    std::fs::remove_file(path).expect("cleanup");
}

fn ours() -> Privilege {
    Privilege::of_this_process().expect("our rights")
}

#[test]
fn a_start_that_failed_just_before_the_death_is_not_forgotten() {
    let (path, plan) = plan("failed-start");
    let (mut keeper, mut link) = FakeKeeper::new();
    let mut supervisor = start::open(&mut link, plan.clone(), false, ours()).expect("a pool");
    serve(&mut supervisor, &mut keeper);
    (supervisor.cells[CELL].alive, supervisor.cells[CELL].exited) = (false, true);
    let mut effects = Vec::new();
    let lost = Event::CellExited { cell: CELL, epoch: EPOCH, by_itself: false };
    supervisor.recorded = None;
    supervisor.core.apply(clock::monotonic(), clock::wall(), lost, &mut effects);
    let restart = Effect::Restart { cell: CELL, epoch: Epoch(2), is_caretaker: false };
    assert!(effects.contains(&restart));
    supervisor.note(&effects).expect("a note");
    // It cannot register, because the name of its mailbox is taken.
    supervisor.follow(effects).expect("another note");
    assert!(!supervisor.pending.is_empty(), "the core has not received the failure");
    drop(supervisor);
    keeper.execute();
    assert_eq!(keeper.cells.len(), 1);
    let (_link, mut link, handover) = keeper.hand_over(plan);
    let next = take_over(&mut link, handover, ours()).expect("all that was kept");
    assert_eq!(next.core.status().cells[0].state, CellState::Lost);
    clear_up(&next, &path);
}

#[test]
fn a_cell_whose_reports_have_a_gap_is_ended() {
    for gap in [3, u64::MAX] {
        let (path, plan) = plan(&format!("gap-{gap}"));
        let (mut keeper, mut link) = FakeKeeper::new();
        let mut supervisor = start::open(&mut link, plan, false, ours()).expect("a pool");
        let capability = serve(&mut supervisor, &mut keeper);
        let report = Report::WantCheckpoint { cell: CELL };
        for number in [0, 1] {
            send_report(&keeper.cells[0], capability, number, report.clone());
            supervisor.receive_from_cell(CELL).expect("a report");
            keeper.execute();
            assert!(keeper.killed.is_empty(), "{number}");
        }
        send_report(&keeper.cells[0], capability, gap, report.clone());
        supervisor.receive_from_cell(CELL).expect("nothing of its own fails");
        keeper.execute();
        assert_eq!(keeper.killed, [supervisor.cells[CELL].token]);
        clear_up(&supervisor, &path);
    }
}
