//! Extended attributes.

use warren_base::limits::{XATTR_SHORT_MAX, XATTR_VALUE_MAX};
use warren_base::{CAPABILITY, Errno};
use warren_proto::typed::{self, Carried};
use warren_proto::{XattrMode, XattrName};

use super::{Call, Served};
use crate::connection::FleetSlot;

impl Call<'_> {
    pub(super) fn get_xattr(&mut self, name: XattrName, len: u32) -> Served {
        let is_extra = name.is_acl() || *name.as_bytes() == *CAPABILITY;
        if is_extra && self.front.plain_inodes.is_plain(self.header.ino) {
            return Err(Errno::ENODATA);
        }
        match self.call(typed::GetXattr { ino: self.header.ino, name })? {
            Carried::Body(value) => self.put_sized(&value, len),
            Carried::Payload(bytes) => self.put_sized(&in_payload(self.slot, bytes)?, len),
        }
    }

    pub(super) fn list_xattr(&mut self, len: u32) -> Served {
        match self.call(typed::ListXattr { ino: self.header.ino })? {
            Carried::Body(names) => {
                let list = names.iter().flat_map(|name| name.iter().copied().chain([0]));
                self.put_sized(&list.collect::<Vec<u8>>(), len)
            }
            Carried::Payload(bytes) => self.put_sized(&in_payload(self.slot, bytes)?, len),
        }
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
        if value.len() > XATTR_VALUE_MAX {
            return Err(Errno::E2BIG);
        }
        // A list has no payload. As ext4 replies when one exceeds its block for attributes.
        let is_long = value.len() > XATTR_SHORT_MAX;
        if is_long && name.is_acl() {
            return Err(Errno::ENOSPC);
        }
        let (payload, value) =
            if is_long { (value, Box::default()) } else { (Box::default(), value) };
        self.slot.payload_out()[..payload.len()].copy_from_slice(&payload);
        let ino = self.header.ino;
        self.front.plain_inodes.forget(ino);
        let request = typed::SetXattr { ino, name, value, mode, kill_set_gid };
        let set = self.call_with(request, payload.len());
        self.front.plain_inodes.forget(ino);
        set
    }

    pub(super) fn remove_xattr(&mut self, name: XattrName) -> Served {
        self.call(typed::RemoveXattr { ino: self.header.ino, name })
    }
}

/// Copies the value or list that has come in the slot's payload lane, which holds the longest ones.
fn in_payload(slot: &dyn FleetSlot, bytes: u32) -> Result<Vec<u8>, Errno> {
    let found = slot.payload_in().get(..bytes as usize);
    found.map(<[u8]>::to_vec).ok_or(Errno::EPROTO)
}
