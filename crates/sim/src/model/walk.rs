//! Path resolution at one instant: `path_lookupat` over the model.

use std::collections::VecDeque;

use warren_base::{Errno, Ino};
use warren_proto::{Credentials, FileKind, Reply};

use super::access::{SEARCH, permit};
use super::inode::Body;
use super::{Legal, State, Step, UNEXPECTED_REPLY};

/// `MAXSYMLINKS`.
const SYMLINKS_MAX: u32 = 40;

/// The remaining components of a path.
struct Rest {
    pieces: VecDeque<Vec<u8>>,
    /// A slash follows the last one.
    slash: bool,
}

impl Rest {
    fn parse(path: &[u8]) -> Self {
        let pieces = path.split(|byte| *byte == b'/').filter(|piece| !piece.is_empty());
        Self { pieces: pieces.map(<[u8]>::to_vec).collect(), slash: path.ends_with(b"/") }
    }

    /// Replaces a link's component with the components of its target.
    fn expand(&mut self, target: &[u8]) {
        let mut inner = Self::parse(target);
        if self.pieces.is_empty() {
            self.slash |= inner.slash;
        }
        inner.pieces.append(&mut self.pieces);
        self.pieces = inner.pieces;
    }
}

impl State {
    /// The attributes of the inode at the end of a path from the root.
    pub(super) fn stat_path(&mut self, step: &Step<'_>, path: &[u8], follow_last: bool) -> Legal {
        match step.settle(self.walk(step.credentials, path, follow_last))? {
            Some((ino, Reply::Attr { attr, .. })) => self.observe_attr(step, ino, attr),
            Some(_) => Err(UNEXPECTED_REPLY),
            None => Ok(()),
        }
    }

    fn walk(&self, who: &Credentials, path: &[u8], follow_last: bool) -> Result<Ino, Errno> {
        let mut rest = Rest::parse(path);
        let mut here = Ino::ROOT;
        let mut links = 0;
        while let Some(piece) = rest.pieces.pop_front() {
            let dir = self.alive(here)?;
            let entries = dir.entries()?;
            permit(who, dir, SEARCH)?;
            let next = match &piece[..] {
                b"." => here,
                b".." => self.parent_of(here),
                name => *entries.get(name).ok_or(Errno::ENOENT)?,
            };
            let follow = !rest.pieces.is_empty() || rest.slash || follow_last;
            match &self.inode(next).body {
                Body::Symlink(target) if follow => {
                    links += 1;
                    if links > SYMLINKS_MAX {
                        return Err(Errno::ELOOP);
                    }
                    rest.expand(target);
                    if target.starts_with(b"/") {
                        here = Ino::ROOT;
                    }
                }
                _ => here = next,
            }
        }
        let is_directory = self.inode(here).kind == FileKind::Directory;
        if rest.slash && !is_directory { Err(Errno::ENOTDIR) } else { Ok(here) }
    }

    fn parent_of(&self, dir: Ino) -> Ino {
        match &self.inode(dir).body {
            Body::Directory { parent, .. } => *parent,
            _ => unreachable!("it has entries"),
        }
    }
}
