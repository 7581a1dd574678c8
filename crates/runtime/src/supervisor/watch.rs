//! The supervisor looks at its cells, its keeper and the mounts, and informs the core of cells that
//! hang.

use std::time::Duration;

use warren_base::CellId;
use warren_supervisor::{Event, LOOK_EVERY, Seen, Work};

use super::state::SupervisorLoop;
use crate::clock;
use crate::error::FleetError;
use crate::watch::process;

/// A sleep that is a beat.
const BEAT: Duration = Duration::from_micros(50);

/// Looks at all of them, if it is time.
pub(super) fn look_around(it: &mut SupervisorLoop<'_>) -> Result<(), FleetError> {
    let now = clock::monotonic();
    if now < it.watches.next {
        return Ok(());
    }
    it.watches.next = now + LOOK_EVERY;
    // The keeper takes the times that this process goes to sleep for its beats, and a backlog of
    // requests leaves it none.
    std::thread::sleep(BEAT);
    it.keeper.look();
    let clients = it.connections.clients().filter_map(|client| it.core.applicant(client));
    it.watches.mounts.look(clients.filter(|client| client.front).map(|client| client.pid));
    let living: Vec<CellId> = it.cells.living().collect();
    for cell in living {
        let (epoch, pid) = (it.cells[cell].epoch, it.cells[cell].pid);
        let memory = &it.memory.cells[usize::from(cell.0)];
        let (beats, work) = (memory.vitals.heartbeat(), memory.work(epoch));
        let has_turned = it.watches.has_turned(cell, epoch, beats) || work == Work::None;
        if has_turned && it.core.detector().counts_turns(cell) {
            it.apply(Event::Turns { cell, epoch })?;
        }
        // A process that was just requested has no number yet, and is not seen.
        match it.watches.of(cell, epoch).look(now, beats, work, || process(pid)) {
            Seen::Nothing => {}
            Seen::Hangs(why) => it.apply(Event::Hangs { cell, epoch, why })?,
            Seen::Moves => it.apply(Event::Moves { cell, epoch })?,
        }
    }
    Ok(())
}
