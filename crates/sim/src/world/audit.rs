//! Reads the whole tree, by one client, call by call. The calls become part of the history, so the
//! checker compares the tree after a restart with the model's.

use std::collections::VecDeque;

use warren_base::Ino;
use warren_client::Op;
use warren_proto::{
    AccessMode, Attr, Capabilities, FileKind, Handle, Position, ReadFlags, Reply, Request,
    XattrName,
};

#[derive(Default)]
pub(super) struct Audit {
    todo: VecDeque<Op>,
    /// Inodes seen, so that an inode with several hard links is read once.
    seen: Vec<Ino>,
}

impl Audit {
    /// From the root, and from these inodes, to which nothing may lead that can be read.
    pub(super) fn of_tree(known: Vec<(Ino, FileKind)>) -> Self {
        let mut audit = Self::default();
        audit.inspect(Ino::ROOT, FileKind::Directory);
        known.into_iter().for_each(|(ino, kind)| audit.inspect(ino, kind));
        audit
    }

    pub(super) fn next_call(&mut self) -> Option<Op> {
        self.todo.pop_front()
    }

    fn inspect(&mut self, ino: Ino, kind: FileKind) {
        if self.seen.contains(&ino) {
            return;
        }
        self.seen.push(ino);
        self.ask(Request::GetAttr { ino });
        self.ask(Request::ListXattr { ino });
        match kind {
            FileKind::Directory => self.todo.push_back(Op::List(ino.into())),
            FileKind::Symlink => self.ask(Request::ReadLink { ino }),
            FileKind::Regular => self.ask(Request::Open { ino, access: AccessMode::READ }),
            _ => {}
        }
    }

    fn ask(&mut self, request: Request) {
        self.todo.push_back(Op::Ino(request, Capabilities::default()));
    }

    /// Errors need no handling: the model rejects an error of a call that must succeed.
    pub(super) fn note_answer(&mut self, op: &Op, answer: &Result<Reply, warren_base::Errno>) {
        let Ok(reply) = answer else { return };
        match (op, reply) {
            (Op::List(dir), Reply::Listing { entries, .. }) => {
                for entry in entries.to_vec() {
                    self.ask(Request::Lookup { dir: dir.ino, name: entry.name });
                    self.inspect(entry.ino, entry.kind);
                }
            }
            (_, Reply::Opened(opened)) => self.read_all(opened.handle, &opened.attr),
            (Op::Ino(Request::ListXattr { ino }, _), Reply::XattrNames(names)) => {
                for name in names.iter().filter_map(|name| XattrName::new(name).ok()) {
                    self.ask(Request::GetXattr { ino: *ino, name });
                }
            }
            _ => {}
        }
    }

    fn read_all(&mut self, handle: Handle, attr: &Attr) {
        let len = PIECE as u32;
        for at in (0..=attr.size).step_by(PIECE) {
            self.ask(Request::Read {
                handle,
                position: Position::At(at),
                len,
                flags: ReadFlags::empty(),
            });
        }
        self.ask(Request::Close { handle });
    }
}

/// Bytes per read.
const PIECE: usize = 48 * 1024;
