//! The fleet's status, from the core, the vitals and the plan.

use warren_base::limits::{BLOCK_SIZE, CHUNK_BLOCKS};
use warren_base::{Errno, Ino, InodeNumbers, Instant, ShardId, Timestamp};
use warren_shm::Counter;
use warren_supervisor::{Cause, CellState, Discarded, Fault, GivenUp, PostFailed, Stage, TakenOut};

use super::state::SupervisorLoop;
use crate::pool::shares;
use crate::silence;
use crate::status::{
    CellStatus, CheckpointStatus, ClientStatus, DeviceCounters, DiscardedStatus, FaultStatus,
    FleetStatus, GivenUpStatus, HarmStatus, LogStatus, LossCounters, PlaceStatus, PostFailedStatus,
    SpaceStatus, TakenOutStatus, UseStatus, names_of_rules,
};

impl SupervisorLoop<'_> {
    /// JSON of the fleet as it is now. A user is shown no clients and mounts of other users, unless
    /// the user has the rights of the fleet's owner (`viewer` is `None`).
    pub(super) fn status_json(&self, viewer: Option<u32>) -> Box<[u8]> {
        // Our own numbers and strings always have a JSON form.
        serde_json::to_vec(&fleet_status(self, viewer)).unwrap_or_default().into()
    }
}

fn fleet_status(it: &SupervisorLoop<'_>, viewer: Option<u32>) -> FleetStatus {
    let mut core = it.core.status();
    let (free, host_room) = (core.chunks_free * CHUNK_BLOCKS, it.pool.host_room());
    core.clients.retain(|client| viewer.is_none_or(|uid| client.uid == uid));
    let cells = core.cells.iter().map(|cell| cell_status(it, cell)).collect();
    let clients = core.clients.iter().map(client_status).collect();
    let keeper = rustix::process::getppid().map_or(0, |pid| pid.as_raw_pid().unsigned_abs());
    let fronts = core.clients.iter().filter(|client| client.front).map(|client| client.pid);
    let pids = [keeper].into_iter().chain(it.cells.iter().map(|(_, cell)| cell.pid));
    let layout = it.core.ledger().superblock().layout;
    let numbers = it.core.ledger().superblock().inode_numbers();
    FleetStatus {
        log: LogStatus {
            log: String::from_utf8_lossy(&it.plan.log).into_owned(),
            log_trouble: it.logged.trouble(),
        },
        uses: UseStatus {
            ends_with_mounts: it.plan.ends_with_mounts,
            cache_bytes: it.plan.cache_bytes,
            files_written: it.memory.cells.iter().map(|cell| cell.counter(Counter::Written)).sum(),
        },
        pool: String::from_utf8_lossy(&it.plan.pool).into_owned(),
        pool_harm: it.pool.harm(layout.total_blocks()).map(str::to_owned),
        keeper_pid: keeper,
        supervisor_pid: std::process::id(),
        supervisor_restarts: it.predecessors,
        // The client that queries fills this in.
        uid: 0,
        state: stage_name(core.stage).into(),
        stopped_pids: silence::stopped(pids, fronts),
        checkpoint: CheckpointStatus {
            generation: core.generation,
            checkpoints: core.checkpoints,
            checkpoints_failed: core.checkpoints_failed,
            failing_since: core.failing_since.map(|since| since.0 / 1_000_000_000),
            broken: core.broken.map(|errno| errno.to_string()),
            read_only_since: core.broken_since.map(|since| since.0 / 1_000_000_000),
        },
        space: SpaceStatus {
            block_size: BLOCK_SIZE as u32,
            total_blocks: layout.total_blocks(),
            free_blocks: free.min(host_room),
            limited_by_host: host_room < free,
            bytes_behind: it.pool.bytes_behind(&layout),
        },
        shards: layout.shards(),
        places: PlaceStatus {
            shard_cells: shares::owners(layout.shards(), it.plan.cells)
                .into_iter()
                .map(|cell| cell.0)
                .collect(),
            dense_inos: numbers != InodeNumbers::STORED,
        },
        harm: HarmStatus {
            given_up: core.given_up.iter().map(given_up_status).collect(),
            taken_out: core.taken_out.iter().map(taken_out_status).collect(),
            discarded: core.discarded.iter().map(|file| discarded_status(numbers, file)).collect(),
            posts_failed: core
                .posts_failed
                .iter()
                .map(|it| post_failed_status(numbers, it))
                .collect(),
        },
        mailboxes: it.mailboxes.names(),
        reports_refused: it.mailboxes.refused,
        cells,
        clients,
        faults: core.faults.iter().map(fault_status).collect(),
    }
}

fn fault_status(fault: &Fault) -> FaultStatus {
    let us = |from: Instant, to: Instant| (to - from).as_micros() as u64;
    let Fault { gone, started, served, .. } = *fault;
    FaultStatus {
        number: fault.number,
        cell: fault.cell.0,
        epoch: fault.epoch.0,
        at: fault.at.0 / 1_000_000_000,
        cause: match fault.cause {
            Cause::FromOutside => "was killed, or could not be started".into(),
            Cause::ByItself => "ended by itself".into(),
            Cause::Verdict(verdict) => verdict.to_string(),
        },
        ended_us: us(fault.noticed, gone),
        barrier_us: started.map(|started| us(gone, started)),
        recovery_us: started.zip(served).map(|(started, served)| us(started, served)),
    }
}

fn cell_status(it: &SupervisorLoop<'_>, cell: &warren_supervisor::CellStatus) -> CellStatus {
    let at = usize::from(cell.cell.0);
    let memory = &it.memory.cells[at];
    let process = &it.cells[cell.cell];
    CellStatus {
        cell: cell.cell.0,
        pid: process.pid,
        epoch: cell.epoch.0,
        state: state_name(cell.state).into(),
        shards: cell.shards as u16,
        restarts: process.pauses.restarts,
        last_pause_ms: process.pauses.last.map(|pause| pause.as_millis() as u64),
        heartbeat: memory.vitals.heartbeat(),
        parked: memory.vitals.thread().sleeps,
        spinners: memory.vitals.spinners(),
        requests: memory.counter(Counter::Requests),
        peer_messages: memory.counter(Counter::PeerMessages),
        losses: LossCounters {
            refused: memory.counter(Counter::Refused),
            stale: memory.counter(Counter::Stale),
            lost_rings: memory.counter(Counter::LostRings),
            lost_wakeups: memory.counter(Counter::LostWakeups),
        },
        busy_ns: memory.counter(Counter::BusyNs),
        parked_ns: memory.counter(Counter::ParkedNs),
        tasks: memory.counter(Counter::Tasks),
        lock_waiters: memory.counter(Counter::LockWaiters),
        queued: memory.counter(Counter::Queued),
        device: DeviceCounters {
            ios: memory.counter(Counter::Ios),
            blocks_read: memory.counter(Counter::BlocksRead),
            blocks_written: memory.counter(Counter::BlocksWritten),
            writes: memory.counter(Counter::Writes),
            flushes: memory.counter(Counter::Flushes),
            silent_ms: memory.counter(Counter::DeviceSilentNs) / 1_000_000,
            io_uring_refused: io_uring_refused(memory.counter(Counter::UringRefused)),
        },
    }
}

fn io_uring_refused(errno: u64) -> Option<String> {
    let raw = i32::try_from(errno).ok().filter(|&raw| raw != 0)?;
    // The cell wrote it, and may write anything.
    Some(Errno::from_raw(raw).unwrap_or(Errno::EIO).to_string())
}

fn given_up_status((shard, gone): &(ShardId, GivenUp)) -> GivenUpStatus {
    let (errno, since) = (gone.errno.to_string(), gone.since.0 / 1_000_000_000);
    GivenUpStatus { shard: shard.0, errno, since }
}

fn taken_out_status(out: &TakenOut) -> TakenOutStatus {
    TakenOutStatus { cell: out.cell.0, since: out.since.0 / 1_000_000_000, returns: out.returns }
}

fn discarded_status(
    numbers: InodeNumbers,
    (ino, file, at): &(Ino, Discarded, Timestamp),
) -> DiscardedStatus {
    let (ino, at) = (numbers.number(*ino), at.0 / 1_000_000_000);
    DiscardedStatus { ino, generation: file.generation, at }
}

fn post_failed_status(
    numbers: InodeNumbers,
    (ino, file, at): &(Ino, PostFailed, Timestamp),
) -> PostFailedStatus {
    let (ino, at) = (numbers.number(*ino), at.0 / 1_000_000_000);
    PostFailedStatus { ino, errno: file.errno.to_string(), at }
}

fn client_status(client: &warren_supervisor::ClientStatus) -> ClientStatus {
    let mounted = (!client.mounted.is_empty()).then_some(&client.mounted);
    ClientStatus {
        client: client.client.0,
        pid: client.pid,
        uid: client.uid,
        front: client.front,
        mounted: mounted.map(|path| String::from_utf8_lossy(path).into_owned()),
        options: names_of_rules(client.rules),
    }
}

fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::Starting | Stage::Opening => "starting",
        Stage::Serving => "serving",
        Stage::Expelling | Stage::LastCheckpoint { .. } | Stage::Closing { .. } => "stopping",
        Stage::Ended => "ended",
    }
}

fn state_name(state: CellState) -> &'static str {
    match state {
        CellState::Starting => "starting",
        CellState::Ready => "ready",
        CellState::Lost => "lost",
        CellState::Stopped => "stopped",
        CellState::Exited => "exited",
    }
}
