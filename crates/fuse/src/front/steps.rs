//! Requests to cells, and what is kept of those that have an effect, so that each happens once.

use warren_base::Errno;
use warren_proto::{Answer, Request};

use super::{Call, ownership, removal};

impl Call<'_> {
    /// Sends every request to a cell. A step that a dead predecessor took for this kernel request
    /// is not sent again, because its effect must happen once.
    pub(super) fn send(&mut self, request: &Request, payload_len: usize) -> Answer {
        let identity = self.header.identity();
        if !request.has_effect() {
            return self.slot.call(identity, request, payload_len);
        }
        loop {
            let answer = self.step(request, payload_len);
            if !request.was_refused(&answer) {
                return ownership::ask_again(self, request, payload_len, answer);
            }
            // The kernel repeats the walk, and has the directory unlocked meanwhile. The second
            // time it would not.
            if !self.front.retries.may_have(self.header.thread) {
                return Err(Errno::ESTALE);
            }
        }
    }

    /// Sends a request that has an effect.
    pub(super) fn step(&mut self, request: &Request, payload_len: usize) -> Answer {
        let front = self.front;
        let record = front.state.record(self.slot.number());
        if let Some(answer) = record.replay(self.header.unique, &mut self.steps) {
            return answer;
        }
        removal::look_at_victim(self, request);
        record.begin_step(self.header.unique, self.slot.last_seq());
        front.absent_names.begin(request);
        if let Some((dir, name)) = request.created_name() {
            let _ = front.sent_entries.will_know(dir, name);
        }
        let answer = self.slot.call(self.header.identity(), request, payload_len);
        front.absent_names.end(request, &answer);
        self.steps = record.end_step(&answer);
        front.dir_copies.keep(self.slot.changed(), self.slot.last_cell());
        answer
    }
}
