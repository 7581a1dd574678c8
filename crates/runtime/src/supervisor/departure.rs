//! Before a fleet stops its mounts are given up, each by the process that keeps it (the custodian).
//!
//! ```text
//! stop          trial ──▶ all fronts: Ask ──▶ all idle ──▶ all fronts: IfIdle ──▶ all gone ──▶ the core stops
//!                 │                   └─ one is in use, or silent ──┴──▶ the stop is refused, the fleet goes on
//!                 └─ its checkpoint fails ──▶ the stop is refused, the fleet goes on
//! stop --force  trial ──▶ all fronts: Force ──▶ all gone, or the time is over ──▶ the core stops
//! ```
//!
//! The trial is a checkpoint while all goes on. It comes first because mounts that have left do not come back when the
//! last checkpoint turns out to fail. A fleet without mounts, one that is to lose what was not synced (`--discard`), and one that
//! ends by a signal make none here.
//!
//! Asking first leaves every mount in its place when one of them is in use: under a directory that is unmounted
//! programs would write to another file system. A signal to the keeper is a forced stop, because a service must
//! end; a second one does not wait any longer.
//!
//! Nothing of it is written down. A supervisor that dies meanwhile hangs up on the visitor, who asks the next
//! supervisor again; the keeper tells that one of its signal.

use std::collections::BTreeSet;
use std::time::Duration;

use tracing::warn;
use warren_base::{ClientId, Instant};
use warren_proto::Wire;
use warren_supervisor::{ClientState, ClientStatus, ConnectionNo, Event, Stage};

use super::{Shell, keeper_died};
use crate::clock;
use crate::door::STOP_TIMEOUT;
use crate::error::{ErrorKind, FleetError};
use crate::launch::path_of;
use crate::message::{DoorReply, IN_USE_MAX, Kept, Leave, ToKeeper};

/// How long the custodians may take to look who uses their mounts, and then to unmount.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);

/// How long they may take to write back what was stored through mappings, and to cut their users off. A visitor
/// waits longer than that for its answer.
const FORCE_PATIENCE: Duration = Duration::from_secs(20);

/// How long a trial may take.
const TRIAL_PATIENCE: Duration = Duration::from_secs(90);

// A visitor that was told to wait does not give up before the fronts had their time, too.
const _: () = assert!(TRIAL_PATIENCE.as_secs() + FORCE_PATIENCE.as_secs() < STOP_TIMEOUT.as_secs());

/// The checkpoint that comes first, while no front is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trial {
    UnderWay,
    Succeeded,
}

pub(super) struct Departure {
    number: u32,
    trial: Option<Trial>,
    how: Leave,
    /// Visitors that asked for the stop, and whether the keeper did.
    visitors: Vec<ConnectionNo>,
    by_keeper: bool,
    /// What the last checkpoint lacks, if it fails, is given up.
    discard: bool,
    /// Fronts that have neither answered nor hung up.
    waiting: BTreeSet<ClientId>,
    /// Lines about mounts that are in use, or were.
    in_use: Vec<String>,
    pub until: Instant,
}

impl Departure {
    fn is_over(&self, now: Instant) -> bool {
        self.until <= now || (!self.is_on_trial() && self.waiting.is_empty())
    }

    /// No front was asked yet.
    pub(super) fn is_on_trial(&self) -> bool {
        self.trial == Some(Trial::UnderWay)
    }
}

impl Shell<'_> {
    /// The fleet shall stop, because this visitor or the keeper says so.
    pub(super) fn depart(
        &mut self,
        mut force: bool,
        mut discard: bool,
        visitor: Option<ConnectionNo>,
    ) -> Result<(), FleetError> {
        let (mut visitors, mut by_keeper) = (Vec::from_iter(visitor), visitor.is_none());
        let status = self.core.status();
        // A stop that is going to be refused leaves the mounts.
        let is_in_vain = status.broken.is_some() && !discard && !by_keeper;
        if status.stage != Stage::Serving || is_in_vain {
            return self.stop_for(&visitors, asks_for(by_keeper, discard));
        }
        let mut is_tried = false;
        if let Some(mut earlier) = self.departure.take() {
            visitors.append(&mut earlier.visitors);
            discard |= earlier.discard;
            is_tried = !earlier.is_on_trial();
            if earlier.is_on_trial() {
                force |= earlier.how == Leave::Force;
            } else if earlier.how == Leave::Force {
                if by_keeper && earlier.by_keeper {
                    earlier.until = clock::monotonic();
                }
                by_keeper |= earlier.by_keeper;
                self.departure = Some(Departure { visitors, by_keeper, discard, ..earlier });
                return Ok(());
            }
        }
        let how = if force || by_keeper { Leave::Force } else { Leave::Ask };
        if is_tried || by_keeper || discard || self.fronts().is_empty() {
            self.ask_fronts(how, visitors, (by_keeper, discard));
            return Ok(());
        }
        self.begin_trial(how, visitors)
    }

    /// Sees first whether the stop would be refused. A trial that is under way for an earlier caller does for this one.
    fn begin_trial(&mut self, how: Leave, visitors: Vec<ConnectionNo>) -> Result<(), FleetError> {
        visitors.iter().for_each(|&it| self.visitors.tell(it, &DoorReply::Trying, Vec::new()));
        let until = clock::monotonic() + TRIAL_PATIENCE;
        self.departure = Some(Departure {
            number: self.departures,
            trial: Some(Trial::UnderWay),
            how,
            visitors,
            by_keeper: false,
            discard: false,
            waiting: BTreeSet::new(),
            in_use: Vec::new(),
            until,
        });
        self.apply(Event::TryCheckpoint)
    }

    /// The fronts are asked as soon as everything that has come is taken in.
    pub(super) fn trial_succeeded(&mut self) {
        if let Some(departure) = self.departure.as_mut().filter(|it| it.is_on_trial()) {
            departure.trial = Some(Trial::Succeeded);
        }
    }

    fn ask_fronts(
        &mut self,
        how: Leave,
        visitors: Vec<ConnectionNo>,
        (by_keeper, discard): (bool, bool),
    ) {
        self.departures += 1;
        let number = self.departures;
        let patience = if how == Leave::Force { FORCE_PATIENCE } else { ANSWER_PATIENCE };
        let mut waiting = BTreeSet::new();
        for client in self.fronts() {
            if let Some(memory) = self.clients.get(&client.client) {
                let leave = DoorReply::Leave { number, how };
                self.visitors.tell(memory.connection, &leave, Vec::new());
                waiting.insert(client.client);
            }
        }
        let until = clock::monotonic() + patience;
        let (trial, in_use) = (None, Vec::new());
        self.departure = Some(Departure {
            number,
            trial,
            how,
            visitors,
            by_keeper,
            discard,
            waiting,
            in_use,
            until,
        });
    }

    fn fronts(&self) -> Vec<ClientStatus> {
        let mut clients = self.core.status().clients;
        // One that has hung up may still be known to cells, and one that cells do not know yet is not mounted.
        clients.retain(|client| client.front && client.state == ClientState::Admitted);
        clients
    }

    /// Takes what a custodian answered; false if it was not asked.
    pub(super) fn in_use(&mut self, client: ClientId, number: u32, by: &[u8]) -> bool {
        let Some(front) = self.fronts().into_iter().find(|front| front.client == client) else {
            return false;
        };
        let Some(departure) = &mut self.departure else {
            // An answer to a stop that was given up.
            return number <= self.departures;
        };
        if number == departure.number {
            if departure.how != Leave::Force {
                departure.waiting.remove(&client);
            }
            if !by.is_empty() {
                let by = String::from_utf8_lossy(&by[..by.len().min(IN_USE_MAX)]);
                departure.in_use.push(format!("{} by {by}", mount_of(&front)));
            }
        }
        number <= departure.number
    }

    pub(super) fn client_hung_up(&mut self, client: ClientId) -> Result<(), FleetError> {
        self.record_front(client, "has left");
        if let Some(departure) = &mut self.departure {
            departure.waiting.remove(&client);
        }
        self.apply(Event::Hangup { client })
    }

    /// Goes on with the departure for as long as all have answered, or the time is over.
    pub(super) fn advance_departure(&mut self) -> Result<(), FleetError> {
        loop {
            let now = clock::monotonic();
            let Some(mut departure) = self.departure.take_if(|it| it.is_over(now)) else {
                return Ok(());
            };
            let silent = self.fronts().into_iter();
            let silent = silent.filter(|front| departure.waiting.contains(&front.client));
            departure.in_use.extend(silent.map(|front| {
                format!("{}, whose process {} does not answer", mount_of(&front), front.pid)
            }));
            self.end_departure(departure)?;
        }
    }

    fn end_departure(&mut self, departure: Departure) -> Result<(), FleetError> {
        let (by_keeper, discard) = (departure.by_keeper, departure.discard);
        match departure.trial {
            None => {}
            Some(Trial::UnderWay) => {
                self.refuse_late_trial(&departure);
                return Ok(());
            }
            // Another stop went on without the mounts that have come meanwhile.
            Some(Trial::Succeeded) if self.core.status().stage != Stage::Serving => {
                return self.stop_for(&departure.visitors, asks_for(by_keeper, discard));
            }
            Some(Trial::Succeeded) => {
                self.ask_fronts(departure.how, departure.visitors, (by_keeper, discard));
                return Ok(());
            }
        }
        match departure.how {
            Leave::Force => {
                let cut_off: Vec<DoorReply> = departure.in_use.iter().map(cut_off).collect();
                self.stop_for(&departure.visitors, asks_for(by_keeper, discard))?;
                for &visitor in &departure.visitors {
                    cut_off.iter().for_each(|it| self.visitors.tell(visitor, it, Vec::new()));
                }
            }
            _ if !departure.in_use.is_empty() => self.refuse_departure(&departure),
            Leave::Ask => self.ask_fronts(Leave::IfIdle, departure.visitors, (false, discard)),
            // A mount has come meanwhile.
            Leave::IfIdle if !self.fronts().is_empty() => {
                self.ask_fronts(Leave::Ask, departure.visitors, (false, discard));
            }
            Leave::IfIdle => self.stop_for(&departure.visitors, asks_for(false, discard))?,
        }
        Ok(())
    }

    fn refuse_late_trial(&mut self, departure: &Departure) {
        let line = format!(
            "{}: a checkpoint takes longer than {} s: the fleet serves on",
            path_of(&self.plan.pool).display(),
            TRIAL_PATIENCE.as_secs()
        );
        warn!("the stop is refused, because its checkpoint takes too long");
        self.refuse(departure, ErrorKind::StopRefused, line);
    }

    fn refuse(&mut self, departure: &Departure, kind: ErrorKind, line: String) {
        let refused = DoorReply::Failed { kind, line: line.into_bytes().into() };
        for &visitor in &departure.visitors {
            self.visitors.disappoint(visitor, &refused);
        }
    }

    fn refuse_departure(&mut self, departure: &Departure) {
        let pool = path_of(&self.plan.pool);
        let line = format!(
            "{}: in use: {}; end these, or stop with --force, which writes back and cuts them off",
            pool.display(),
            departure.in_use.join("; ")
        );
        warn!("the stop is refused, because a mount is in use: {}", departure.in_use.join("; "));
        self.refuse(departure, ErrorKind::PoolInUse, line);
    }

    /// No mount stands in the way any more.
    fn stop_for(&mut self, visitors: &[ConnectionNo], event: Event) -> Result<(), FleetError> {
        for &connection in visitors {
            let name = Kept::Stopping(connection.0);
            let socket = self.visitors.socket(connection).into_iter().collect();
            let keep = ToKeeper::Keep { name }.to_bytes();
            self.keeper.send(keep, socket).map_err(|_| keeper_died())?;
        }
        // The next supervisor, if this one dies, stops the fleet, too.
        self.settle()?;
        visitors.iter().for_each(|&connection| self.tell_stopping(connection));
        self.apply(event)
    }
}

/// A signal's stop ends the fleet, whatever is lost; a visitor's only if it loses nothing, or that is given up.
const fn asks_for(by_keeper: bool, discard: bool) -> Event {
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

/// Said on the fleet's standard error as well, where a signal has nobody else to answer.
fn cut_off(line: &String) -> DoorReply {
    warn!("a mount was cut off while in use: {line}");
    let line = format!("a mount was cut off while in use: {line}");
    DoorReply::CutOff { line: line.into_bytes().into() }
}
