//! The parts of a tree, in which the client alone changes names: see [`crate::trees`].

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use hashbrown::HashMap;
use warren_base::{CellId, FixedState, Ino, Timestamp};
use warren_proto::stream::{Numbered, Numbers};
use warren_proto::{
    Answer, Answered, Capability, Change, FileKind, FileName, InodeRef, InodeValue,
};

use crate::guard::Guard;

/// The inode that a name leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Leads {
    Member(Ino, FileKind),
    /// An inode that the client has not looked up.
    Unknown,
    /// An inode that is no member. `is_refused`: the cell has refused to make it one.
    Elsewhere {
        inode: InodeRef,
        kind: FileKind,
        is_refused: bool,
    },
}

/// The names of a directory.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) by_name: HashMap<Box<[u8]>, Leads, FixedState>,
    /// Where the next page of a listing begins, until all names are known.
    pub(crate) unlisted: Option<u64>,
    /// The client cannot list them.
    pub(crate) is_hidden: bool,
}

impl Names {
    pub(crate) fn all_of_none() -> Self {
        Self { by_name: HashMap::default(), unlisted: None, is_hidden: false }
    }

    /// The names of a directory that has so many, of which none is known.
    pub(crate) fn unlisted(count: u64) -> Self {
        Self { unlisted: (count > 0).then_some(0), ..Self::all_of_none() }
    }

    /// The members that the names lead to.
    pub(crate) fn members(&self) -> impl Iterator<Item = Ino> {
        self.by_name.values().filter_map(|leads| match leads {
            Leads::Member(ino, _) => Some(*ino),
            Leads::Unknown | Leads::Elsewhere { .. } => None,
        })
    }
}

/// The knowledge of the client about the attributes of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Known {
    /// Each page up to the size is allocated, and none behind it.
    pub(crate) is_dense: bool,
    /// The number of blocks, and the times, are right.
    pub(crate) is_exact: bool,
}

/// An inode of a tree.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) root: Ino,
    pub(crate) capability: Capability,
    /// The inode as the last post has left it. `None` if a request may have changed it.
    pub(crate) value: Option<InodeValue>,
    pub(crate) known: Known,
    /// The file is open through the handle with which it was made, and through no other.
    pub(crate) is_open: bool,
    pub(crate) names: Option<Names>,
}

impl Node {
    /// A request in a slot uses the file: its data, and so its size and times, may change.
    pub(crate) fn note_use(&mut self) {
        self.known = Known { is_dense: false, is_exact: false };
        self.is_open = false;
    }
}

/// The lease of a tree, and what came with it.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) cell: CellId,
    /// `None` while a request in a slot changes the tree, and afterwards until a lease comes.
    pub(crate) guard: Option<Guard>,
    pub(crate) stamp: u64,
    pub(crate) credit: u32,
    pub(crate) numbers: VecDeque<(Ino, Numbered)>,
    /// The credit and the numbers that came with the last reply.
    pub(crate) full: (u32, usize),
    /// More was asked for, and has not come.
    pub(crate) is_extending: bool,
}

impl Tree {
    pub(crate) fn new(cell: CellId, guard: Guard, credit: u32, numbers: &Numbers) -> Self {
        let mut tree = Self {
            cell,
            guard: Some(guard),
            stamp: guard.stamp,
            credit: 0,
            numbers: VecDeque::new(),
            full: (0, 0),
            is_extending: false,
        };
        tree.add(credit, numbers);
        tree
    }

    pub(crate) fn add(&mut self, credit: u32, numbers: &Numbers) {
        self.credit += credit;
        let each = numbers.each.iter().zip(numbers.first.0..);
        self.numbers.extend(each.map(|(numbered, number)| (Ino(number), *numbered)));
        self.full = (credit, numbers.each.len());
    }

    /// Whether half of it is used.
    pub(crate) fn is_low(&self) -> bool {
        self.credit < self.full.0 / 2 || self.numbers.len() < self.full.1 / 2
    }
}

/// A change of names that may be posted, or would fail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamePost {
    pub cell: CellId,
    pub guard: Guard,
    pub time: Timestamp,
    /// The number of the inode that it makes.
    pub new: Option<Ino>,
    /// The reply of the cell, without leases. An error: nothing is to be published.
    pub answer: Answer,
    pub granted: Capability,
    pub(crate) root: Ino,
    pub(crate) cost: u32,
    pub(crate) changes: Vec<Change>,
}

impl NamePost {
    /// The directory under whose delegation it is posted.
    pub const fn root(&self) -> Ino {
        self.root
    }

    pub fn answered(&self) -> Answered {
        Answered::new(self.answer.clone(), self.granted)
    }
}

/// A fact that a client does not know, and needs to plan a change of names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Missing {
    /// The names of the directory.
    Names(Ino),
    /// The inode of the name.
    Name(Ino, FileName),
}
