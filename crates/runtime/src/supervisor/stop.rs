//! Before a fleet stops, each mount is unmounted by its mount keeper.
//!
//! ```text
//! stop          trial ──▶ all: Ask ──▶ all idle ──▶ all: IfIdle ──▶ all gone ──▶ the core stops
//! │           └─ one is in use, or silent ──┴──▶ refused, the fleet continues
//! └─ its checkpoint fails ──▶ refused, the fleet continues
//! stop --force  trial ──▶ all fronts: Force ──▶ all gone, or the time is over ──▶ the core stops
//! ```
//!
//! The trial is a checkpoint while the fleet serves. It comes first because unmounted mounts do not
//! return if the last checkpoint fails. There is no trial for a fleet without mounts, for a stop
//! that may lose what was not synced (`--discard`), and for a stop by a signal.
//!
//! All mounts are asked before any is unmounted, so that all stay if one of them is in use: under
//! an unmounted directory programs would write to another file system. A signal to the keeper is a
//! forced stop, because a service must end; a second signal ends the wait.
//!
//! An attempt is not noted in the journal. If the supervisor dies meanwhile, its client's
//! connection closes and the client asks the next supervisor again. The keeper repeats its signal
//! to the next supervisor.

use std::collections::BTreeSet;

use tracing::{info, warn};
use warren_base::{ClientId, Errno};
use warren_supervisor::{ClientState, ClientStatus, ConnectionNo, Event, Stage, Supervisor};
use warren_transport::control::{ControlReply, IN_USE_MAX, Leave};

use super::logged::front;
use super::state::SupervisorLoop;
use super::stop_attempt::{StopAttempt, StopRequest, TRIAL_SECONDS_MAX, Trial};
use crate::clock;
use crate::error::{ErrorKind, FleetError};
use crate::message::{Kept, path_of};

impl SupervisorLoop<'_> {
    /// Handles a request to stop the fleet.
    pub(super) fn begin_stop(&mut self, request: StopRequest) -> Result<(), FleetError> {
        if request.if_unused && !has_mounts(&self.core) {
            // From now on the core admits no front, unless the stop is refused.
            return self.stop_core(&request.connections, stop_event(false, request.discard));
        } else if request.if_unused {
            let line = format!("{}: it is mounted", path_of(&self.plan.pool).display());
            self.refuse(&request.connections, ErrorKind::PoolInUse, line);
            return Ok(());
        }
        let status = self.core.status();
        // A stop that would be refused leaves the mounts.
        let is_refused = status.broken.is_some() && !request.discard && !request.by_keeper;
        if status.stage != Stage::Serving || is_refused {
            let event = stop_event(request.by_keeper, request.discard);
            return self.stop_core(&request.connections, event);
        }
        let Some((request, is_tried)) = self.stop.join(request, clock::monotonic()) else {
            return Ok(());
        };
        let StopRequest { connections, by_keeper, force, discard, .. } = request;
        let how = if force || by_keeper { Leave::Force } else { Leave::Ask };
        if is_tried || by_keeper || discard || self.fronts().is_empty() {
            self.ask_fronts(how, connections, (by_keeper, discard));
            return Ok(());
        }
        self.begin_trial(how, connections)
    }

    /// Tests first whether the stop would be refused. A trial for an earlier caller that is in
    /// progress serves this one as well.
    fn begin_trial(
        &mut self,
        how: Leave,
        connections: Vec<ConnectionNo>,
    ) -> Result<(), FleetError> {
        let trying = ControlReply::Trying;
        connections.iter().for_each(|&it| self.connections.send(it, &trying, Vec::new()));
        self.stop.begin_trial(how, connections, clock::monotonic());
        self.apply(Event::TryCheckpoint)
    }

    fn ask_fronts(&mut self, how: Leave, connections: Vec<ConnectionNo>, by: (bool, bool)) {
        let leave = ControlReply::Leave { number: self.stop.next_number(), how };
        let mut waiting = BTreeSet::new();
        for front in self.fronts() {
            if let Some(memory) = self.clients.memory(front.client) {
                self.connections.send(memory.connection, &leave, Vec::new());
                waiting.insert(front.client);
            }
        }
        self.stop.asked(how, connections, by, waiting, clock::monotonic());
    }

    fn fronts(&self) -> Vec<ClientStatus> {
        let mut clients = self.core.status().clients;
        // A client whose connection is closed may still be known to cells. A client that not all
        // cells know yet is not mounted.
        clients.retain(|client| client.front && client.state == ClientState::Admitted);
        clients
    }

    /// Handles the answer of a mount keeper. False if it was not asked.
    pub(super) fn in_use(&mut self, client: ClientId, number: u32, by: &[u8]) -> bool {
        let Some(front) = self.fronts().into_iter().find(|front| front.client == client) else {
            return false;
        };
        let in_use = (!by.is_empty()).then(|| {
            let by = String::from_utf8_lossy(&by[..by.len().min(IN_USE_MAX)]);
            format!("{} by {by}", mount_of(&front))
        });
        self.stop.answered(client, number, in_use)
    }

    pub(super) fn client_hung_up(&mut self, client: ClientId) -> Result<(), FleetError> {
        front(&self.core, client, "has left");
        let was_front = self.core.applicant(client).is_some_and(|it| it.front);
        self.stop.hung_up(client);
        self.apply(Event::Hangup { client })?;
        let is_last = was_front && self.plan.ends_with_mounts && !has_mounts(&self.core);
        if is_last && self.core.status().stage == Stage::Serving {
            info!("the last mount has left, so the fleet ends");
            return self.begin_stop(StopRequest::of_unused());
        }
        Ok(())
    }

    /// Continues the attempt to stop when all fronts have answered, or the time is over.
    pub(super) fn advance_stop(&mut self) -> Result<(), FleetError> {
        while let Some(mut attempt) = self.stop.take_over(clock::monotonic()) {
            let silent = self.fronts().into_iter();
            let silent = silent.filter(|front| attempt.waiting.contains(&front.client));
            attempt.in_use.extend(silent.map(|front| {
                format!("{}, whose process {} does not answer", mount_of(&front), front.pid)
            }));
            self.end_attempt(attempt)?;
        }
        Ok(())
    }

    fn end_attempt(&mut self, attempt: StopAttempt) -> Result<(), FleetError> {
        let (by_keeper, discard) = (attempt.by_keeper, attempt.discard);
        match attempt.trial {
            None => {}
            Some(Trial::UnderWay) => {
                self.refuse_late_trial(&attempt);
                return Ok(());
            }
            // Another stop has gone on without the mounts that were made meanwhile.
            Some(Trial::Succeeded) if self.core.status().stage != Stage::Serving => {
                return self.stop_core(&attempt.connections, stop_event(by_keeper, discard));
            }
            Some(Trial::Succeeded) => {
                self.ask_fronts(attempt.how, attempt.connections, (by_keeper, discard));
                return Ok(());
            }
        }
        match attempt.how {
            Leave::Force => {
                let cut_off: Vec<ControlReply> = attempt.in_use.iter().map(cut_off).collect();
                self.stop_core(&attempt.connections, stop_event(by_keeper, discard))?;
                for &connection in &attempt.connections {
                    cut_off.iter().for_each(|it| self.connections.send(connection, it, Vec::new()));
                }
            }
            _ if !attempt.in_use.is_empty() => self.refuse_in_use(&attempt),
            Leave::Ask => self.ask_fronts(Leave::IfIdle, attempt.connections, (false, discard)),
            // A mount was made meanwhile.
            Leave::IfIdle if !self.fronts().is_empty() => {
                self.ask_fronts(Leave::Ask, attempt.connections, (false, discard));
            }
            Leave::IfIdle => self.stop_core(&attempt.connections, stop_event(false, discard))?,
        }
        Ok(())
    }

    fn refuse_late_trial(&mut self, attempt: &StopAttempt) {
        let line = format!(
            "{}: a checkpoint takes longer than {} s: the fleet continues to serve",
            path_of(&self.plan.pool).display(),
            TRIAL_SECONDS_MAX
        );
        warn!("the stop is refused, because its checkpoint takes too long");
        self.refuse(&attempt.connections, ErrorKind::StopRefused, line);
    }

    fn refuse(&mut self, connections: &[ConnectionNo], kind: ErrorKind, line: String) {
        let refused = ControlReply::Failed { kind, line: line.into_bytes().into() };
        for &connection in connections {
            self.connections.send_last(connection, &refused);
        }
    }

    fn refuse_in_use(&mut self, attempt: &StopAttempt) {
        let pool = path_of(&self.plan.pool);
        let line = format!(
            "{}: in use: {}; end these, or stop with --force, which writes back and cuts them off",
            pool.display(),
            attempt.in_use.join("; ")
        );
        warn!("the stop is refused, because a mount is in use: {}", attempt.in_use.join("; "));
        self.refuse(&attempt.connections, ErrorKind::PoolInUse, line);
    }

    /// Stops the core. No mount blocks the stop any more.
    fn stop_core(&mut self, connections: &[ConnectionNo], event: Event) -> Result<(), FleetError> {
        for &connection in connections {
            let socket = self.connections.socket(connection).into_iter().collect();
            self.keeper.keep(Kept::Stopping(connection.0), socket)?;
        }
        // If this supervisor dies, the next one continues the stop.
        self.keeper.settle()?;
        connections.iter().for_each(|&connection| self.send_stopping(connection));
        self.apply(event)
    }

    pub(super) fn send_stopping(&mut self, connection: ConnectionNo) {
        let keeper = rustix::process::getppid().map_or(0, |pid| pid.as_raw_pid());
        let stopping = ControlReply::Stopping { keeper: keeper.unsigned_abs() };
        self.connections.send(connection, &stopping, Vec::new());
    }

    /// Sends every client that asked for the stop the reason why it is refused.
    pub(super) fn refuse_stop(&mut self, errno: Errno) -> Result<(), FleetError> {
        warn!(%errno, "the stop is refused, because its checkpoint failed: the fleet continues to serve");
        self.stop.trial_failed();
        let connections: Vec<ConnectionNo> = self.connections.stopping().collect();
        for connection in connections {
            self.keeper.forget(Kept::Stopping(connection.0))?;
            let refused = ControlReply::StopRefused { errno: errno.raw() };
            self.connections.send_last(connection, &refused);
        }
        Ok(())
    }
}

/// Whether there is a front, or one is being admitted.
fn has_mounts(core: &Supervisor) -> bool {
    let clients = core.status().clients;
    clients.iter().any(|client| client.front && client.state != ClientState::Expelling)
}

/// The event of a stop. A signal's stop ends the fleet, whatever is lost. A client's stop ends it
/// only if nothing is lost, or if the client discards that.
const fn stop_event(by_keeper: bool, discard: bool) -> Event {
    match (by_keeper, discard) {
        (_, true) => Event::GiveUp,
        (true, false) => Event::Stop,
        (false, false) => Event::TryStop,
    }
}

fn mount_of(front: &ClientStatus) -> String {
    match &*front.mounted {
        [] => format!("a mount (client {})", front.client.0),
        path => String::from_utf8_lossy(path).into_owned(),
    }
}

/// The line is also logged, because a stop by a signal has no connection to reply to.
fn cut_off(line: &String) -> ControlReply {
    warn!("a mount was cut off while in use: {line}");
    let line = format!("a mount was cut off while in use: {line}");
    ControlReply::CutOff { line: line.into_bytes().into() }
}
