//! A record that is being made: the steps of one task, or of the cell itself.
//!
//! ```text
//! Record: steps are noted ──▶ OpLog::append(cause): it is in the log
//!                         ──▶ the actions that waited for it are done
//! ```
//!
//! The log has one record that is being made. The code of a turn notes steps into it, and `append`
//! leaves it without steps. So a step is in exactly one record, and a record is in the log exactly
//! once.

use warren_disk::{RECORD_HEADER, RECORD_MAX, RawRecord};
use warren_proto::{Cause, Change, Reader, Step, Wire};

use crate::event::FrameNo;

/// An action that must not happen before its record is in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum After {
    /// The frame holds no dirty page any more. An I/O may still use it.
    Untag(FrameNo),
    /// The same, and no I/O uses the frame.
    Release(FrameNo),
}

/// Steps that were made and are not in the log yet.
#[must_use]
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// Empty, or a header and the encoded steps.
    bytes: Vec<u8>,
    steps: u16,
    after: Vec<After>,
    omits_session: bool,
}

impl Record {
    /// Sets whether later records may leave out opens and locks, because no successor takes over
    /// from this cell.
    pub(crate) const fn omit_session(&mut self, omits: bool) {
        self.omits_session = omits;
    }

    /// Notes a step that is being made.
    pub(crate) fn note(&mut self, step: &Step) {
        if !self.omits_session || !step.is_of_session() {
            step.encode(self.next_step());
        }
    }

    /// Notes a change that was made, which is a step.
    pub(crate) fn note_change(&mut self, change: &Change) {
        Step::encode_change(change, self.next_step());
    }

    /// Where the next step is encoded.
    fn next_step(&mut self) -> &mut Vec<u8> {
        if self.bytes.is_empty() {
            self.bytes.resize(RECORD_HEADER, 0);
        }
        self.steps += 1;
        &mut self.bytes
    }

    /// The action is done when the record is in the log.
    pub(crate) fn add_after(&mut self, after: After) {
        self.after.push(after);
    }

    /// Whether there is nothing to log and no action to do afterwards.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.steps == 0 && self.after.is_empty()
    }

    /// Whether this has to be in the log. A decision has to be, even if it changes nothing at this
    /// cell.
    pub(crate) fn is_to_log(&self, cause: &Cause) -> bool {
        self.steps > 0 || matches!(cause, Cause::Decided { .. })
    }

    /// Whether the places of another batch of pages still fit.
    pub(crate) fn takes_another_step(&self) -> bool {
        self.bytes.len() <= RECORD_MAX / 2
    }

    /// The actions that wait for the record.
    pub(crate) fn take_after(&mut self) -> Vec<After> {
        std::mem::take(&mut self.after)
    }

    /// The encoded steps and the cause, behind a header that is filled in later, and the number of
    /// steps.
    pub(super) fn body(&mut self, cause: &Cause) -> (&mut Vec<u8>, u16) {
        if self.bytes.is_empty() {
            self.bytes.resize(RECORD_HEADER, 0);
        }
        cause.encode(&mut self.bytes);
        (&mut self.bytes, self.steps)
    }

    /// The steps are in the log.
    pub(super) fn empty(&mut self) {
        self.bytes.clear();
        self.steps = 0;
    }
}

/// A record's steps and cause. `None` for a record that is intact but invalid: no cell wrote it.
pub(crate) fn parse(record: &RawRecord) -> Option<(Vec<Step>, Cause)> {
    let mut reader = Reader::new(&record.body);
    let steps = (0..record.steps).map(|_| Step::decode(&mut reader).ok());
    let steps = steps.collect::<Option<Vec<_>>>()?;
    Some((steps, Cause::decode(&mut reader).ok()?))
}
