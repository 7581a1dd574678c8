//! Extended attributes.

use warren_base::limits::XATTR_VALUE_MAX;
use warren_base::{CAPABILITY, Errno};
use warren_proto::{XattrMode, XattrName, typed};

use super::{Call, Served};

impl Call<'_> {
    pub(super) fn get_xattr(&mut self, name: XattrName, len: u32) -> Served {
        let is_extra = name.is_acl() || *name.as_bytes() == *CAPABILITY;
        if is_extra && self.front.plain_inodes.is_plain(self.header.ino) {
            return Err(Errno::ENODATA);
        }
        let value = self.call(typed::GetXattr { ino: self.header.ino, name })?;
        self.put_sized(&value, len)
    }

    pub(super) fn list_xattr(&mut self, len: u32) -> Served {
        let names = self.call(typed::ListXattr { ino: self.header.ino })?;
        let list: Vec<u8> = names.iter().flat_map(|name| name.iter().copied().chain([0])).collect();
        self.put_sized(&list, len)
    }

    /// Replies with the length only if `len` is 0.
    pub(super) fn put_sized(&mut self, value: &[u8], len: u32) -> Served {
        if len == 0 {
            self.body.count(value.len() as u32);
        } else if value.len() > len as usize {
            return Err(Errno::ERANGE);
        } else {
            self.body.bytes(value);
        }
        Ok(())
    }

    pub(super) fn set_xattr(
        &mut self,
        name: XattrName,
        value: Box<[u8]>,
        (mode, kill_set_gid): (XattrMode, bool),
    ) -> Served {
        // As ext4 replies when a value exceeds its block for attributes.
        if value.len() > XATTR_VALUE_MAX {
            return Err(Errno::ENOSPC);
        }
        let ino = self.header.ino;
        self.front.plain_inodes.forget(ino);
        let set = self.call(typed::SetXattr { ino, name, value, mode, kill_set_gid });
        self.front.plain_inodes.forget(ino);
        set
    }

    pub(super) fn remove_xattr(&mut self, name: XattrName) -> Served {
        self.call(typed::RemoveXattr { ino: self.header.ino, name })
    }
}
