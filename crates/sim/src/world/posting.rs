//! The changes that clients post: how often in a run, and those that are not checked yet.

use std::rc::Rc;

use warren_base::{CellId, ClientId, Ino, Rng, Timestamp};
use warren_client::{Guard, NamePost, Post, Send};
use warren_proto::stream::StreamPos;
use warren_proto::{Answer, FileKind};

use crate::simulation::Faults;
use crate::swarm::Swarm;

/// The most that clients use directories of others: [`Posts::crowd`].
pub(super) const CROWD: u64 = 2;

/// The chances and sizes of posts in a run.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Posts {
    /// In 100: a change that may be posted is.
    pub chance: u64,
    /// In 100: the next call is a change of what the client alone uses.
    pub eager: u64,
    /// In 100: such a change is one of names.
    pub names: u64,
    /// One call on names in so many is in a directory of another client.
    pub crowd: u64,
    /// Bytes of a ring.
    pub ring: usize,
    /// The longest time until a cell looks at a stream, in nanoseconds.
    pub look: u64,
}

impl Posts {
    pub(super) fn draw(seed: u64, swarm: &Swarm) -> Self {
        let mut rng = Rng::new(seed ^ 0x9057);
        let chance = *rng.pick(&[0, 60, 90, 100]);
        let eager = *rng.pick(&[0, 30, 80]);
        let ring = *rng.pick(&[40_000, 200_000, 1 << 20]);
        let look = *rng.pick(&[1_000, 100_000, 5_000_000]);
        let names = *rng.pick(&[0, 50, 90]);
        let crowd = *rng.pick(&[CROWD, 6, 30]);
        let Faults { cell_read, cell_write, cell_flush, rot, .. } = swarm.faults;
        let Faults { supervisor_write, supervisor_flush, wild, .. } = swarm.faults;
        // An error of the device comes after the return of what was posted.
        let faults =
            cell_read + cell_write + cell_flush + rot + supervisor_write + supervisor_flush;
        match faults + wild {
            0 => Self { chance, eager, names, crowd, ring, look },
            _ => Self::default(),
        }
    }

    pub(super) const fn may_happen(self) -> bool {
        self.chance > 0
    }
}

/// A prediction of a client's library.
#[derive(Clone, Debug)]
pub(super) enum Planned {
    File(Post),
    Names(NamePost),
}

impl Planned {
    pub(super) const fn cell(&self) -> CellId {
        match self {
            Self::File(post) => post.cell,
            Self::Names(post) => post.cell,
        }
    }

    pub(super) const fn guard(&self) -> Guard {
        match self {
            Self::File(post) => post.guard,
            Self::Names(post) => post.guard,
        }
    }

    pub(super) const fn time(&self) -> Timestamp {
        match self {
            Self::File(post) => post.time,
            Self::Names(post) => post.time,
        }
    }

    /// The number of the inode that it makes.
    pub(super) const fn new_inode(&self) -> Option<Ino> {
        match self {
            Self::File(_) => None,
            Self::Names(post) => post.new,
        }
    }

    /// The answer that the client predicts.
    pub(super) fn answer(&self) -> Answer {
        match self {
            Self::File(post) => Ok(post.reply.clone()),
            Self::Names(post) => post.answer.clone(),
        }
    }
}

/// An inode that a client has made in a directory in which it works.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub client: ClientId,
    pub ino: Ino,
    pub kind: FileKind,
    /// The cell and the end of the record that makes it. Until that is executed, only this client
    /// can have its number.
    pub record: Option<(CellId, StreamPos)>,
}

/// A change that is posted and not checked yet.
#[derive(Clone, Debug)]
pub(super) struct Posting {
    pub planned: Planned,
    /// The number of the inode that the record makes. It may be wrong: then the record is to be
    /// skipped.
    pub new: Option<Ino>,
    pub is_wrong: bool,
    /// The end of the record, if there is one.
    pub end: Option<StreamPos>,
    /// The inodes that it leaves without a name.
    pub ended: Vec<Ino>,
    /// The request, as it would be sent in the slot.
    pub send: Send,
    pub payload: Rc<[u8]>,
    pub invoked: (u64, Timestamp),
    /// The lease has ended, and a request to the cell was sent.
    pub waits: bool,
    /// The record has a time that cannot be true. The cell takes that of the execution.
    pub is_untrue: bool,
}
