//! The data that planning needs, as far as it can be had.

use warren_base::limits::DEPTH_MAX;
use warren_base::{Errno, Ino, ShardId, Timestamp};
use warren_proto::{Acl, Credentials, FileKind, FileName, InodeValue, LockMode};

use crate::permission::{self, CHANGE_NAMES};

/// The inodes and names that a plan is made from. The plan counts as long as they stay as they were
/// seen: a view may note what is looked at, and in which [`LockMode`] it has to stay.
pub trait View {
    /// The reason why planning stops: an error of the request, or data that are not at hand.
    type Stop: From<Errno>;

    /// The credentials of the request.
    fn who(&self) -> &Credentials;

    /// The time of the changes.
    fn now(&self) -> Timestamp;

    /// The inode, if it exists and has a link or is open.
    fn inode(&mut self, ino: Ino, mode: LockMode) -> Result<Option<InodeValue>, Self::Stop>;

    /// The inode of a name.
    fn name(
        &mut self,
        dir: Ino,
        name: &FileName,
        mode: LockMode,
    ) -> Result<Option<(Ino, FileKind)>, Self::Stop>;

    /// The list that new files in the directory inherit.
    fn default_acl(&self, dir: &InodeValue) -> Result<Option<Acl>, Self::Stop>;

    /// The shard of a new directory with this name.
    fn place(&self, dir: Ino, name: &FileName) -> ShardId;

    /// A number for a new inode of the shard.
    fn new_ino(&mut self, shard: ShardId) -> Result<Ino, Self::Stop>;

    /// Whether files of the shard are opened here. A request that opens a file of another shard
    /// only looks its name up.
    fn opens_files_of(&self, shard: ShardId) -> bool;

    /// A directory, with whose entries the operation works in `mode`.
    fn directory(&mut self, ino: Ino, mode: LockMode) -> Result<InodeValue, Self::Stop> {
        match self.inode(ino, mode) {
            Ok(Some(value)) if value.attr.kind == FileKind::Directory => Ok(value),
            Ok(Some(_)) => Err(Errno::ENOTDIR.into()),
            Ok(None) => Err(Errno::ESTALE.into()),
            Err(stop) => Err(stop),
        }
    }

    /// Whether `who` may add a name to `dir`. ENOENT for a directory that was removed while it is
    /// open.
    fn may_add(&self, dir: &InodeValue) -> Result<(), Errno> {
        if dir.attr.nlink == 0 {
            return Err(Errno::ENOENT);
        }
        permission::check(self.who(), dir, CHANGE_NAMES)
    }

    /// The operation will need this name and its directory, and the inode to which it leads.
    fn expect_name(&mut self, _dir: Ino, _name: &FileName) -> Result<(), Self::Stop> {
        Ok(())
    }

    /// The file takes the name of something else, so its data must be logged before.
    fn touch_logged(&mut self, _ino: Ino) -> Result<(), Self::Stop> {
        Ok(())
    }

    /// The right to change the shape of the tree.
    fn touch_tree(&mut self) -> Result<(), Self::Stop> {
        Ok(())
    }

    /// Whether `ancestor` is `dir` or above it. The caller holds the right to change the shape of
    /// the tree. A directory that was removed while it is open may have no parent any more.
    fn is_above(&mut self, ancestor: Ino, dir: Ino) -> Result<bool, Self::Stop> {
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            if at == ancestor || at == Ino::ROOT {
                return Ok(at == ancestor);
            }
            match self.inode(at, LockMode::Read)? {
                Some(value) => at = value.parent,
                None => return Ok(false),
            }
        }
        Err(Errno::ELOOP.into())
    }
}
