//! Extended attributes.

use warren_base::Errno;
use warren_base::limits::XATTR_VALUE_MAX;
use warren_proto::{XattrMode, XattrName, typed};

use super::{Call, Served};

impl Call<'_> {
    pub(super) fn get_xattr(&mut self, name: XattrName, len: u32) -> Served {
        if let Some(errno) = unsupported(&name) {
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

    /// Replies with the length only if `len` is 0.
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
        if unsupported(&name).is_some() {
            return Err(Errno::EOPNOTSUPP);
        }
        // As ext4 replies when a value exceeds its block for attributes.
        if value.len() > XATTR_VALUE_MAX {
            return Err(Errno::ENOSPC);
        }
        self.call(typed::SetXattr { ino: self.header.ino, name, value, mode })
    }

    pub(super) fn remove_xattr(&mut self, name: XattrName) -> Served {
        match unsupported(&name) {
            Some(errno) => Err(errno),
            None => self.call(typed::RemoveXattr { ino: self.header.ino, name }),
        }
    }
}

/// The reply for attributes that no file has. No cell is asked, because the kernel requests file
/// capabilities at every `execve`, and `ls` requests the access control list of every file.
fn unsupported(name: &XattrName) -> Option<Errno> {
    match name.as_bytes() {
        b"security.capability" => Some(Errno::ENODATA),
        name if name.starts_with(b"system.") => Some(Errno::EOPNOTSUPP),
        _ => None,
    }
}
