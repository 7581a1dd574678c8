//! Answers of cells are checked here. A refusal may leave a lock with the caller.

use warren_base::{CellId, Errno};
use warren_cell::SlotRef;
use warren_proto::{Answer, LockType, Reply, Request};

use super::program::Holdings;
use crate::fleet::Fleet;
use crate::history::{Action, NEVER, Operation, Outcome};
use crate::outage::Outage;

/// A sync that succeeds needs a checkpoint since its invocation, and no known failed flush. After a
/// restart (`is_audit`) nothing fails.
pub(super) fn check_answer<H>(
    fleet: &mut Fleet<H>,
    is_audit: bool,
    (request, invoked): (&Request, u64),
    answer: &Answer,
) {
    if is_audit && *answer == Err(Errno::EIO) && !fleet.incidents.has_damage() {
        fleet.sim.fail(format!("after a restart {request:?} is answered with EIO"));
    }
    // The op log serves `fsync`; the crash campaign checks its promises.
    if *request != Request::Sync {
        return;
    }
    let switched_at = fleet.incidents.switched_at;
    let must_fail = fleet.device.faults.must_sync_fail(invoked, switched_at);
    match answer {
        Ok(_) if switched_at < invoked => {
            fleet.sim.fail("a sync is answered without a checkpoint".to_owned());
        }
        Ok(_) if must_fail => fleet.sim.fail("a sync is answered after a loss".to_owned()),
        Err(Errno::EIO) if fleet.device.faults.supervisor > 0 => {
            fleet.sim.count("a sync returned a failure");
        }
        _ => {}
    }
}

/// Notes whether a caretaker has refused the call, to which a lock may have been granted before its
/// cell died. The owner has the lock then, until it releases it or closes the file. Its program
/// releases it as if the call had succeeded, but does not rely on it.
pub(super) fn may_have_locked(
    outage: &Outage,
    holdings: &mut Holdings,
    operation: &mut Operation,
) -> bool {
    let Action::Request(request) = &operation.action else { return false };
    let Request::Lock { handle, spec, wait: true } = *request else { return false };
    let answer = operation.outcome.as_ref().map(|outcome| &outcome.answer);
    let may_have = answer == Some(&Err(Errno::EIO))
        && outage.follows(operation.invoked)
        && holdings.would_unlock(handle, LockType::Unlock);
    if may_have {
        holdings.note_doubtful(handle, spec);
        operation.returned = NEVER;
        operation.outcome = Some(Outcome::of(Ok(Reply::Done)));
    }
    may_have
}

/// The data that a cell's answer brings.
pub(super) fn payload_of<H>(
    fleet: &mut Fleet<H>,
    from: CellId,
    (to, seq): (SlotRef, u32),
    answer: &Answer,
) -> Vec<u8> {
    match answer {
        Ok(Reply::Read { len }) => fleet.lanes.reply(from, to, *len as usize),
        Ok(Reply::LongXattr { .. }) => {
            fleet.sim.count("a long value came");
            fleet.lanes.payload(from, to, seq)
        }
        Ok(reply) if reply.opened().is_some() => {
            let data = fleet.lanes.payload(from, to, seq);
            if !data.is_empty() {
                fleet.sim.count("data came with an open file");
            }
            data
        }
        _ => Vec::new(),
    }
}
