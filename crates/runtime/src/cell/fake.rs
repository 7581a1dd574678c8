//! Stands in for the cell until it is there.
use std::collections::BTreeMap;
use warren_base::{CellId, Errno};
use warren_cell::{CellConfig, Clock, Effect, Event, Memory, SlotRef};
use warren_proto::control::{Order, Report};
use warren_proto::{Reply, Request};

pub struct Cell {
    id: CellId,
    waiting: BTreeMap<SlotRef, u32>,
    locked: bool,
}

impl Cell {
    pub fn new(config: CellConfig, _: Clock, effects: &mut Vec<Effect>) -> Self {
        effects.push(Effect::Report(Report::Ready {
            cell: config.id,
            epoch: config.epoch,
            map: config.map_version,
        }));
        Self { id: config.id, waiting: BTreeMap::new(), locked: false }
    }

    pub fn apply(&mut self, _: Clock, event: Event, memory: &mut impl Memory, effects: &mut Vec<Effect>) {
        match event {
            Event::Request { from, header, request } => {
                let seq = header.seq;
                let mut payload_len = 0;
                let answer = match request {
                    Request::Lock { wait: true, .. } if std::mem::replace(&mut self.locked, true) => {
                        self.waiting.insert(from, seq);
                        return;
                    }
                    Request::Cancel { slot, seq } => {
                        let to = SlotRef { client: from.client, slot };
                        if self.waiting.get(&to) == Some(&seq) {
                            self.waiting.remove(&to);
                            effects.push(Effect::Reply { to, seq, answer: Err(Errno::EINTR), payload_len: 0 });
                        }
                        Ok(Reply::Done)
                    }
                    Request::Write { .. } => {
                        let frame = warren_cell::FrameNo(u32::from(from.slot.0));
                        memory.payload_to_frame(from, 0, frame, 0, 4096);
                        Ok(Reply::Written { len: header.payload_len, size: 0 })
                    }
                    Request::Read { .. } => {
                        let frame = warren_cell::FrameNo(u32::from(from.slot.0));
                        memory.frame_to_payload(frame, 0, from, 0, 4096);
                        payload_len = 4096;
                        Ok(Reply::Read { len: 4096 })
                    }
                    _ => Ok(Reply::Done),
                };
                effects.push(Effect::Reply { to: from, seq, answer, payload_len });
            }
            Event::Order(order) => self.obey(order, effects),
            _ => {}
        }
    }

    fn obey(&mut self, order: Order, effects: &mut Vec<Effect>) {
        let cell = self.id;
        effects.push(Effect::Report(match order {
            Order::Admit { client, .. } => Report::Admitted { client },
            Order::Expel { client } => Report::Expelled { client },
            Order::Drain { number } => Report::Drained { cell, number },
            Order::Write { number } => Report::Written { cell, number, result: Ok(Default::default()) },
            Order::Stop => Report::Stopped { cell },
            _ => return,
        }));
    }
}
