//! Requests on attributes, plain and extended, and on access control lists.

use warren_base::limits::{XATTR_SHORT_MAX, XATTR_VALUE_MAX};
use warren_base::{CAPABILITY, Ino, InodeFlags, Timestamp};
use warren_client::Op;
use warren_proto::{
    ACL_ACCESS, ACL_DEFAULT, Capabilities, Request, SetAttr, SetTime, XattrMode, XattrName,
};

use super::{Draw, Drawn};
use crate::swarm::Kind;

/// Names of attributes.
const XATTRS: [&[u8]; 6] =
    [b"user.a", b"user.b", b"user.c", b"trusted.a", b"security.a", b"security.capability"];

/// Tags of the entries of a list, in their order. Each names one user or group.
const TAGS: [u16; 6] = [1, 2, 4, 8, 16, 32];

impl Draw<'_> {
    pub(super) fn set_attr(&mut self, kind: Kind) -> Request {
        let mut set = SetAttr::default();
        let mut handle = None;
        let mut ino = self.any_inode();
        match kind {
            Kind::Truncate => {
                set.size = Some(self.rng.below(self.swarm.reach));
                set.kill_privileges = self.kills(self.uid != 0);
                if let Some(held) = self.handle().filter(|_| self.rng.chance(1, 2)) {
                    (ino, handle) = (held.ino, Some(held));
                }
            }
            Kind::Chmod => {
                while self.known.links.contains(&ino) {
                    ino = self.known.dir(self.rng);
                }
                let modes =
                    [0o755, 0o777, 0o700, 0o1777, 0o2777, 0o644, 0o4755, 0o311, 0o2666, 0o711];
                set.mode = Some(*self.rng.pick(&modes));
            }
            Kind::Chown => {
                ino = self.known.file(self.rng, self.swarm.hot_files).unwrap_or(Ino::ROOT);
                let ids = [None, Some(0), Some(1000), Some(1001)];
                (set.uid, set.gid) = (*self.rng.pick(&ids), *self.rng.pick(&ids));
                set.kill_privileges = self.kills(true);
            }
            Kind::Chattr => {
                let flags = [
                    InodeFlags::empty(),
                    InodeFlags::empty(),
                    InodeFlags::NODUMP | InodeFlags::NOATIME,
                    InodeFlags::APPEND,
                    InodeFlags::IMMUTABLE,
                ];
                set.flags = Some(*self.rng.pick(&flags));
            }
            _ => {
                set.kill_privileges = self.kills(false);
                let far = *self.rng.pick(&[Timestamp::SECONDS_MIN, -1, 10_413_792_000]);
                let far = Timestamp::from_parts(far, 7);
                let at = [self.now, self.now, far].map(|time| Some(SetTime::At(time)));
                let times = [None, Some(SetTime::Now), at[0], at[1], at[2]];
                (set.atime, set.mtime) = (*self.rng.pick(&times), *self.rng.pick(&times));
            }
        }
        Request::SetAttr { ino, handle, set }
    }

    /// Whether a request clears the set-id bits: a front does what its kernel requires, others
    /// choose at random.
    fn kills(&mut self, kernel_wants: bool) -> bool {
        if self.front { kernel_wants } else { self.rng.chance(1, 2) }
    }

    /// A value that a body has no room for comes beside the request.
    pub(super) fn xattr(&mut self) -> Drawn {
        let (mut request, mut long) = (self.short_xattr(), Vec::new());
        if let Request::SetXattr { name, value, .. } = &mut request
            && *name.as_bytes() != *CAPABILITY
            && self.rng.chance(1, 12)
        {
            let len = *self.rng.pick(&[XATTR_SHORT_MAX + 1, 5000, XATTR_VALUE_MAX]);
            long = vec![self.rng.below(256) as u8; len];
            *value = Box::default();
        }
        (Op::Ino(request, Capabilities::default()), long)
    }

    fn short_xattr(&mut self) -> Request {
        let ino = self.any_inode();
        let name = *self.rng.pick(&XATTRS);
        let is_capability = name.ends_with(b"capability");
        let name = XattrName::new(name).expect("a legal name");
        match self.rng.below(5) {
            0 => Request::GetXattr { ino, name },
            1 => Request::ListXattr { ino },
            2 => Request::RemoveXattr { ino, name },
            _ => {
                let modes =
                    [XattrMode::Any, XattrMode::Create, XattrMode::Replace, XattrMode::Both];
                let mode = *self.rng.pick(&modes);
                let len = *self.rng.pick(&[0, 10, 1000]);
                let mut value = vec![self.rng.below(256) as u8; len];
                if is_capability && self.rng.chance(4, 5) {
                    value = [&[0, 0, 0, 2][..], &[1; 16]].concat();
                }
                let value = value.into();
                Request::SetXattr { ino, name, value, mode, kill_set_gid: false }
            }
        }
    }

    pub(super) fn acl(&mut self) -> Request {
        let name = *self.rng.pick(&[ACL_ACCESS, ACL_DEFAULT]);
        let of_dirs = name == ACL_DEFAULT && self.rng.chance(9, 10);
        let ino = if of_dirs { self.known.dir(self.rng) } else { self.any_inode() };
        let name = XattrName::new(name).expect("a legal name");
        match self.rng.below(6) {
            0 => Request::GetXattr { ino, name },
            1 => Request::RemoveXattr { ino, name },
            _ => {
                let (value, mode) = (self.list().into(), XattrMode::Any);
                // What a kernel has found out.
                let kill_set_gid = self.front && self.rng.chance(1, 4);
                Request::SetXattr { ino, name, value, mode, kill_set_gid }
            }
        }
    }

    /// A list in the form of an attribute, sometimes an illegal one.
    fn list(&mut self) -> Vec<u8> {
        let is_minimal = self.rng.chance(1, 4);
        let mut value = 2_u32.to_le_bytes().to_vec();
        for tag in TAGS {
            let is_named = matches!(tag, 2 | 8);
            let is_extra = is_named || tag == 16;
            if (is_extra && is_minimal) || self.rng.chance(1, 50) {
                continue;
            }
            let id = if is_named { 1000 + self.rng.below(3) as u32 } else { u32::MAX };
            // Few lists forbid everything, so that calls succeed.
            let rights: u16 = *self.rng.pick(&[7, 7, 7, 7, 7, 7, 6, 5, 4, 3, 1, 0, 8]);
            value.extend(tag.to_le_bytes());
            value.extend(rights.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }
}
