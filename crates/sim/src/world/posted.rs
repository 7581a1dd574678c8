//! A change that was posted is checked, and the call goes on with its outcome ([`super::posts`]).

use warren_base::{CellId, Errno};
use warren_client::Send;
use warren_proto::{Answered, Request, RequestHeader};

use super::World;
use super::call::{send_request, step_call};
use super::event::At;
use super::observe::note_reply;
use super::posting::Planned;
use super::posts::record_post;

/// Loads the word of a change that was posted.
pub(super) fn check_posted(world: &mut World, at: At) {
    let client = &mut world.clients[at.client];
    let words = world.fleet.lanes.words_of(client.id);
    let slot = &mut client.slots[at.slot];
    let posting = slot.posting.as_mut().expect("it is posted");
    let is_names = matches!(posting.planned, Planned::Names(_));
    let fails = posting.planned.answer().is_err();
    if posting.planned.guard().holds(&words) && !posting.is_wrong {
        let answered = predicted(&posting.planned);
        let place = (posting.planned.cell(), client.id);
        let streams = &mut world.fleet.lanes.streams;
        if posting.end.is_some_and(|end| !streams.promise(place, end)) {
            let rule = format!("{at:?} goes on after a record that was not executed");
            world.fleet.sim.fail(rule);
        }
        world.fleet.sim.count(match (is_names, fails) {
            (false, _) => "a change posted",
            (true, false) => "a change of names posted",
            (true, true) => "a change of names that fails, as its client knows",
        });
        return end_posting(world, at, answered);
    }
    match &posting.planned {
        Planned::File(post) => client.cache.end_delegation(post.ino()),
        Planned::Names(post) => client.cache.lose(post.guard),
    }
    if fails {
        world.fleet.sim.count("a failure predicted too late");
        let posting = slot.posting.take().expect("it is posted");
        return send_request(world, at, posting.send);
    }
    posting.waits = true;
    let (cell, header) = (posting.planned.cell(), RequestHeader::default());
    world.fleet.sim.count(match is_names {
        false => "a change posted too late",
        true => "a change of names posted too late",
    });
    send_request(world, at, Send { cell, header, request: Request::Null });
}

fn predicted(planned: &Planned) -> Answered {
    match planned {
        Planned::File(post) => Answered::from(Ok(post.reply.clone())),
        Planned::Names(post) => post.answered(),
    }
}

/// The request that was sent to wait for the outcome is answered.
pub(super) fn posting_answered(world: &mut World, at: At, from: CellId) {
    let client = &world.clients[at.client];
    let posting = client.slots[at.slot].posting.as_ref().expect("it is posted");
    let outcome = world.fleet.lanes.streams.outcome((from, client.id));
    match outcome.errno {
        None if posting.is_wrong => {
            let rule = format!("{at:?} has made an inode with a wrong number: {:?}", posting.new);
            world.fleet.sim.fail(rule);
        }
        None => {
            let answered = match &posting.planned {
                Planned::File(post) => Answered::from(Ok(post.clone().late_reply(outcome.value))),
                Planned::Names(post) => post.answered(),
            };
            end_posting(world, at, answered);
        }
        Some(Errno::EAGAIN) => {
            world.fleet.sim.count("a skipped record sent as a request");
            let posting = world.slot(at).posting.take().expect("it is posted");
            send_request(world, at, posting.send);
        }
        Some(errno) => end_posting(world, at, Err(errno).into()),
    }
}

fn end_posting(world: &mut World, at: At, answered: Answered) {
    let posting = world.slot(at).posting.take().expect("it is posted");
    world.fleet.sim.note(&("posted", at, &answered.answer));
    let record = posting.end.map(|end| (posting.planned.cell(), end));
    note_reply(world, at, (&posting.send.request, record), &answered.answer);
    if answered.answer.is_ok() {
        world.clients[at.client].kept.nameless.extend(&posting.ended);
    }
    let returned = world.fleet.sim.place();
    world.last_return = world.fleet.sim.now;
    record_post(world, at, &posting, returned, answered.answer.clone());
    step_call(world, at, Some(answered));
}
