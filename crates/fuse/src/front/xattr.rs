//! Extended attributes.

use warren_base::Errno;
use warren_base::limits::XATTR_VALUE_MAX;
use warren_proto::{XattrMode, XattrName, typed};

use super::{Call, Served};

impl Call<'_> {
    pub(super) fn get_xattr(&mut self, name: XattrName, len: u32) -> Served {
        if let Some(errno) = never_there(&name) {
            return Err(errno);
        }
        let value = self.call(typed::GetXattr { ino: self.header.ino, name })?;
        self.put_sized(&value, len)
    }

    pub(super) fn list_xattr(&mut self, len: u32) -> Served {
        let names = self.call(typed::ListXattr { ino: self.header.ino })?;
        let list: Vec<u8> = names.iter().flat_map(|name| name.iter().copied().chain([0])).collect();
        self.put_sized(&list, len)
    }

    /// Only the length if `len` is 0.
    fn put_sized(&mut self, value: &[u8], len: u32) -> Served {
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
        mode: XattrMode,
    ) -> Served {
        if never_there(&name).is_some() {
            return Err(Errno::EOPNOTSUPP);
        }
        // As ext4 answers when a value exceeds the block that is there for them.
        if value.len() > XATTR_VALUE_MAX {
            return Err(Errno::ENOSPC);
        }
        self.call(typed::SetXattr { ino: self.header.ino, name, value, mode })
    }

    pub(super) fn remove_xattr(&mut self, name: XattrName) -> Served {
        match never_there(&name) {
            Some(errno) => Err(errno),
            None => self.call(typed::RemoveXattr { ino: self.header.ino, name }),
        }
    }
}

/// Attributes that no file has are answered without a cell: the kernel asks for capabilities at
/// every `execve`, and programs that list directories for access control lists at every file.
fn never_there(name: &XattrName) -> Option<Errno> {
    match name.as_bytes() {
        b"security.capability" => Some(Errno::ENODATA),
        name if name.starts_with(b"system.") || name.starts_with(b"security.") => {
            Some(Errno::EOPNOTSUPP)
        }
        _ => None,
    }
}
