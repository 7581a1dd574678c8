//! A cell and its part of the machine: its process, its frames, and the messages between it and the
//! supervisor. Orders arrive in order, and so do reports; the first of each is being delivered.

use std::collections::VecDeque;

use warren_base::limits::BLOCK_SIZE;
use warren_base::{CellId, Epoch, Instant};
use warren_cell::{Cell, FrameNo};
use warren_proto::control::{Order, Report};
use warren_supervisor::LOOK_EVERY;

use super::hang::Pause;
use super::happening::{Happening, Sim};
use super::process::Slots;

type Frame = Box<[u8; BLOCK_SIZE]>;

/// The contents of a frame that was never filled: neither zeros nor data.
static UNFILLED: [u8; BLOCK_SIZE] = [0xc3; BLOCK_SIZE];

/// A cell and its part of the machine. The cell is taken out while it runs.
pub(crate) struct CellHost {
    pub id: CellId,
    pub cell: Option<Cell>,
    pub epoch: Epoch,
    /// Frames of its cache. Those of the log's image lie behind them.
    pub cache_frames: u32,
    frames: Vec<Option<Frame>>,
    /// Its process is gone.
    pub dead: bool,
    pub(super) pause: Pause,
    /// The process that accuses other cells at random, and the process that is to end for that.
    pub(super) lies: Option<Epoch>,
    pub(super) is_sentenced: Option<Epoch>,
    /// A successor is to start.
    pub(super) is_starting: bool,
    /// The successor is to be killed as soon as it has a process.
    pub(super) is_to_end: bool,
    /// Its process, or the one to start, is a caretaker. Others die early as long as it is broken.
    pub is_caretaker: bool,
    pub is_broken: bool,
    /// Processes that ended since the supervisor was last informed that one was ready.
    pub(super) ended_in_a_row: u32,
    pub(super) wake: Option<Instant>,
    pub(super) orders: VecDeque<Order>,
    /// The orders that a successor receives before its first turn: those sent with its start.
    pub(super) beginning: Option<usize>,
    pub(super) reports: VecDeque<Report>,
    pub slots: Slots,
}

impl CellHost {
    /// `frames`: those of its cache, and all.
    pub(super) fn new(id: CellId, cell: Cell, epoch: Epoch, frames: (u32, usize)) -> Self {
        let (cache_frames, frames) = frames;
        Self {
            id,
            cell: Some(cell),
            epoch,
            cache_frames,
            frames: vec![None; frames],
            dead: false,
            pause: Pause::default(),
            lies: None,
            is_sentenced: None,
            is_starting: false,
            is_to_end: false,
            is_caretaker: false,
            is_broken: false,
            ended_in_a_row: 0,
            wake: None,
            orders: VecDeque::new(),
            beginning: Some(0),
            reports: VecDeque::new(),
            slots: Slots::default(),
        }
    }

    /// Whether this process of the cell runs.
    pub(super) fn is_running(&self, epoch: Epoch) -> bool {
        !self.dead && self.epoch == epoch
    }

    /// Whether the process accuses other cells at random.
    pub(super) fn is_lying(&self) -> bool {
        self.lies == Some(self.epoch)
    }

    /// The number of all frames.
    pub(super) fn frames(&self) -> u32 {
        self.frames.len() as u32
    }

    pub(crate) fn frame(&self, frame: FrameNo) -> &[u8; BLOCK_SIZE] {
        self.frames[frame.0 as usize].as_deref().unwrap_or(&UNFILLED)
    }

    pub(crate) fn frame_mut(&mut self, frame: FrameNo) -> &mut [u8; BLOCK_SIZE] {
        self.frames[frame.0 as usize].get_or_insert_with(|| Box::new(UNFILLED))
    }

    pub(super) fn gather(&self, frames: &[FrameNo]) -> Vec<u8> {
        frames.iter().flat_map(|frame| *self.frame(*frame)).collect()
    }

    /// The end of the pause of the process, if it is stopped: perhaps just now.
    pub(super) fn pause<H>(&mut self, sim: &mut Sim<H>) -> Option<Instant> {
        if self.dead {
            return None;
        }
        let is_stopped = self.pause.end(sim.now).is_some();
        if !is_stopped && sim.is_drawn(sim.faults.pauses, 10_000) {
            sim.count("a cell paused");
            self.pause.begin(sim.now, &mut sim.rng);
            let (cell, epoch, errs) = (self.id, self.epoch, sim.rng.chance(1, 8));
            sim.plan(LOOK_EVERY.as_nanos() as u64, Happening::Look { cell, epoch, errs });
        }
        self.pause.end(sim.now)
    }

    /// The process is gone. `lost_at` is the first place for what it had executed and not answered.
    /// Returns the reports that the supervisor has not received.
    pub(super) fn die(&mut self, lost_at: u64) -> VecDeque<Report> {
        (self.cell, self.wake, self.dead) = (None, None, true);
        self.slots.forget();
        self.slots.lost_at = lost_at;
        self.orders.clear();
        std::mem::take(&mut self.reports)
    }

    /// A successor is to start.
    pub(super) fn prepare_successor(&mut self, epoch: Epoch, is_caretaker: bool) {
        self.is_caretaker = is_caretaker;
        (self.epoch, self.is_starting, self.beginning) = (epoch, true, None);
        self.is_to_end = false;
    }

    /// The successor has a process. Returns the orders that it receives before its first turn.
    pub(super) fn begin_successor(&mut self, cell: Cell) -> Vec<Order> {
        (self.cell, self.dead, self.is_starting) = (Some(cell), false, false);
        self.pause = Pause::default();
        self.slots.forget();
        let beginning = self.beginning.expect("all orders that come with its start are sent");
        self.orders.drain(..beginning).collect()
    }

    pub(super) fn send_order<H>(&mut self, sim: &mut Sim<H>, order: Order) {
        if self.dead && !self.is_starting {
            return;
        }
        self.orders.push_back(order);
        if self.orders.len() == 1 && !self.dead {
            self.plan_order(sim);
        }
    }

    /// Plans the arrival of the next order, if there is one.
    pub(super) fn plan_order<H>(&self, sim: &mut Sim<H>) {
        if !self.orders.is_empty() {
            let delay = sim.message_delay();
            sim.plan(delay, Happening::Order { to: self.id, epoch: self.epoch });
        }
    }

    pub(super) fn next_order<H>(&mut self, sim: &mut Sim<H>) -> Order {
        let order = self.orders.pop_front().expect("there is an order");
        self.plan_order(sim);
        order
    }

    pub(super) fn send_report<H>(&mut self, sim: &mut Sim<H>, report: Report) {
        self.reports.push_back(report);
        if self.reports.len() == 1 {
            self.plan_report(sim);
        }
    }

    fn plan_report<H>(&self, sim: &mut Sim<H>) {
        if !self.reports.is_empty() {
            let delay = sim.message_delay();
            sim.plan(delay, Happening::Report { from: self.id, epoch: self.epoch });
        }
    }

    pub(super) fn next_report<H>(&mut self, sim: &mut Sim<H>) -> Report {
        let report = self.reports.pop_front().expect("there is a report");
        self.plan_report(sim);
        report
    }
}
