//! One line of `/proc/self/mountinfo`.
//!
//! ```text
//! 50 30 0:45 / /mnt/a\040b rw,nosuid shared:9 - fuse.warren /pool rw,user_id=0,allow_other
//! id parent device root at options optional   - kind        source options of the file system
//! ```

use warren_proto::Rules;

use super::proc::number;

const KIND: &[u8] = b"fuse.warren";
/// The flags of `statfs` are valid (`ST_VALID`).
const ST_VALID: u64 = 0x20;
/// Options of a mount, and how `statfs` shows them.
const SHOWN: &[(&[u8], u64)] = &[
    (b"ro", 0x1),
    (b"nosuid", 0x2),
    (b"nodev", 0x4),
    (b"noexec", 0x8),
    (b"noatime", 0x400),
    (b"nodiratime", 0x800),
    (b"relatime", 0x1000),
    (b"nosymfollow", 0x2000),
];
/// Options of the file system.
const SHOWN_OF_FILE_SYSTEM: &[(&[u8], u64)] = &[(b"ro", 0x1), (b"sync", 0x10), (b"mand", 0x40)];

/// The extent to which nothing may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadOnly {
    No,
    /// On this mount of the file system.
    Mount,
    /// On the whole file system.
    FileSystem,
}

/// The options of a mount on which answers rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub read_only: ReadOnly,
    pub no_exec: bool,
    /// Changes must be durable before their calls return: the mount's front does that.
    pub sync: bool,
    pub rules: Rules,
    /// The flags that `statfs` shows.
    pub shown: u64,
}

impl Options {
    pub(crate) fn of(mount: &Mount<'_>) -> Self {
        Self {
            read_only: mount.read_only(),
            no_exec: has(mount.options, b"noexec"),
            sync: [&b"sync"[..], b"dirsync"].iter().any(|it| has(mount.super_options, it)),
            rules: mount.rules(),
            shown: mount.shown(),
        }
    }

    /// Whether the fleet may be asked for changes. Others are the kernel's.
    pub(crate) fn lets_change(&self) -> bool {
        !self.sync && !self.rules.contains(Rules::READ_ONLY)
    }
}

/// A mount. The fields with paths are as the kernel writes them: see [`unescaped`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mount<'a> {
    pub id: u64,
    /// Major and minor number.
    pub device: (u32, u32),
    /// The directory of the file system that is mounted.
    pub root: &'a [u8],
    pub at: &'a [u8],
    options: &'a [u8],
    kind: &'a [u8],
    pub source: &'a [u8],
    super_options: &'a [u8],
}

impl<'a> Mount<'a> {
    pub(crate) fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let id = number(fields.next()?)?;
        let _parent = fields.next()?;
        let mut device = fields.next()?.split(|byte| *byte == b':');
        let mut part = || u32::try_from(number(device.next()?)?).ok();
        let device = (part()?, part()?);
        let (root, at, options) = (fields.next()?, fields.next()?, fields.next()?);
        fields.find(|field| *field == b"-")?;
        let (kind, source) = (fields.next()?, fields.next()?);
        let super_options = fields.next().unwrap_or_default();
        Some(Self { id, device, root, at, options, kind, source, super_options })
    }

    /// A mount of a file system of ours, or of a directory of it that has a name.
    pub(crate) fn is_ours(&self) -> bool {
        self.kind == KIND && !self.root.ends_with(b"//deleted")
    }

    /// Whether it lies on a directory below `directory`.
    pub(crate) fn is_inside(&self, directory: &[u8]) -> bool {
        let mut at = unescaped(self.at);
        directory.iter().all(|byte| at.next() == Some(*byte)) && at.next() == Some(b'/')
    }

    pub(crate) fn is_at(&self, directory: &[u8]) -> bool {
        unescaped(self.at).eq(directory.iter().copied())
    }

    pub(crate) fn read_only(&self) -> ReadOnly {
        if has(self.super_options, b"ro") {
            ReadOnly::FileSystem
        } else if has(self.options, b"ro") {
            ReadOnly::Mount
        } else {
            ReadOnly::No
        }
    }

    /// The rules for requests of programs on this mount.
    pub(crate) fn rules(&self) -> Rules {
        let mut rules = Rules::empty();
        let no_atime = has(self.options, b"noatime");
        rules.set(Rules::READ_ONLY, self.read_only() != ReadOnly::No);
        rules.set(Rules::NO_ATIME, no_atime);
        rules.set(Rules::STRICT_ATIME, !no_atime && !has(self.options, b"relatime"));
        rules
    }

    /// The flags that `statfs` shows (`calculate_f_flags` in Linux's `fs/statfs.c`).
    pub(crate) fn shown(&self) -> u64 {
        let of_mount = SHOWN.iter().filter(|(option, _)| has(self.options, option));
        let of_system = SHOWN_OF_FILE_SYSTEM.iter();
        let of_system = of_system.filter(|(option, _)| has(self.super_options, option));
        of_mount.chain(of_system).fold(ST_VALID, |flags, (_, flag)| flags | flag)
    }

    /// Whether the kernel follows symbolic links there.
    pub(crate) fn follows_links(&self) -> bool {
        !has(self.options, b"nosymfollow")
    }

    /// The user who has mounted it.
    pub(crate) fn mounter(&self) -> Option<u32> {
        self.id_of(b"user_id=")
    }

    /// Whether the kernel lets a process with these ids use the mount, and checks modes itself.
    /// Without `allow_other` it lets in those of the user and the group that have mounted only.
    pub(crate) fn allows(&self, uid: u32, gid: u32) -> bool {
        let own = self.mounter() == Some(uid) && self.id_of(b"group_id=") == Some(gid);
        has(self.super_options, b"default_permissions")
            && (has(self.super_options, b"allow_other") || own)
    }

    fn id_of(&self, name: &[u8]) -> Option<u32> {
        let mut options = self.super_options.split(|byte| *byte == b',');
        let value = options.find_map(|option| option.strip_prefix(name));
        u32::try_from(number(value?)?).ok()
    }
}

fn has(options: &[u8], wanted: &[u8]) -> bool {
    options.split(|byte| *byte == b',').any(|option| option == wanted)
}

/// A field without the kernel's escapes: blanks, tabs, line ends and backslashes are written as
/// three octal digits.
pub(crate) fn unescaped(field: &[u8]) -> impl Iterator<Item = u8> {
    let mut rest = field;
    core::iter::from_fn(move || {
        let (first, tail) = rest.split_first()?;
        let digits = tail.get(..3).filter(|digits| digits.iter().all(|d| matches!(d, b'0'..=b'7')));
        match (first, digits) {
            (b'\\', Some(digits)) => {
                rest = &tail[3..];
                let value = digits.iter().fold(0_u32, |value, d| value * 8 + u32::from(d - b'0'));
                Some(value as u8)
            }
            _ => {
                rest = tail;
                Some(*first)
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &[u8] = b"50 30 0:45 / /srv/a\\040b rw,nosuid shared:9 master:1 - fuse.warren \
        /my\\040pool rw,user_id=7,group_id=8,default_permissions";

    #[test]
    fn a_line_is_parsed() {
        let mount = Mount::parse(LINE).expect("a mount");
        assert_eq!((mount.id, mount.device), (50, (0, 45)));
        assert!(mount.is_ours() && mount.is_at(b"/srv/a b") && !mount.is_at(b"/srv/a"));
        assert!(unescaped(mount.source).eq(b"/my pool".iter().copied()));
        assert!(
            mount.is_inside(b"/srv") && !mount.is_inside(b"/srv/a") && !mount.is_inside(b"/sr")
        );
        assert!(!mount.is_inside(b"/srv/a b"));
        let options = Options::of(&mount);
        assert!(options.read_only == ReadOnly::No && !options.no_exec && !options.sync);
        for nonsense in
            [&b""[..], b"1 2 3", b"50 30 0:45 / /srv rw", b"x 30 0:45 / /srv rw - a b c"]
        {
            assert_eq!(Mount::parse(nonsense), None);
        }
        let short = Mount::parse(b"1 0 8:1 / / ro,noexec - ext4 /dev/sda").expect("a mount");
        assert!(!short.is_ours() && Options::of(&short).no_exec);
        assert_eq!(short.read_only(), ReadOnly::Mount);
        assert_eq!(Mount { super_options: b"ro", ..short }.read_only(), ReadOnly::FileSystem);
        assert_eq!(short.rules(), Rules::READ_ONLY | Rules::STRICT_ATIME);
        let line = b"1 0 0:1 / /m rw,noatime - fuse.warren /pool rw,dirsync";
        let quiet = Mount::parse(line).expect("a mount");
        assert_eq!((quiet.rules(), Options::of(&quiet).sync), (Rules::NO_ATIME, true));
        let line = b"1 0 0:1 / /m rw,relatime - fuse.warren /pool rw";
        assert_eq!(Mount::parse(line).expect("a mount").rules(), Rules::empty());
        assert_eq!((mount.shown(), short.shown()), (0x22, 0x29));
        assert_eq!(
            (quiet.shown(), Mount { super_options: b"ro,sync", ..quiet }.shown()),
            (0x420, 0x431)
        );
        assert!(short.follows_links() && mount.follows_links());
        let line = b"1 0 0:1 / /m rw,nosymfollow - fuse.warren /pool rw";
        assert!(!Mount::parse(line).expect("a mount").follows_links());
        let part = Mount::parse(b"1 0 0:1 /a / rw - fuse.warren /pool rw").expect("a mount");
        assert!(part.is_ours() && part.root == b"/a");
        let line = b"1 0 0:1 /a//deleted / rw - fuse.warren /pool rw";
        assert!(!Mount::parse(line).expect("a mount").is_ours(), "its directory has no name");
    }

    #[test]
    fn others_use_a_mount_if_it_allows_them() {
        let mount = Mount::parse(LINE).expect("a mount");
        assert!(mount.allows(7, 8) && !mount.allows(0, 0) && !mount.allows(7, 9));
        let options: &[u8] = b"rw,user_id=7,group_id=8,default_permissions,allow_other";
        assert!(Mount { super_options: options, ..mount }.allows(1, 1));
        let options: &[u8] = b"rw,user_id=7,group_id=8,allow_other";
        assert!(!Mount { super_options: options, ..mount }.allows(7, 8));
    }

    #[test]
    fn escapes_are_undone() {
        assert!(unescaped(b"a\\134040\\9\\").eq(b"a\\040\\9\\".iter().copied()));
    }
}
