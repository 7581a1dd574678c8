//! A path as a program gives it, cut into components.

use alloc::borrow::Cow;
use alloc::boxed::Box;

use warren_base::Errno;
use warren_base::limits::SYMLINK_MAX;
use warren_proto::{FileName, InodeRef};

/// A path, where it starts, and whether a symbolic link at its end is followed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Path {
    /// The directory that `/` names.
    pub root: InodeRef,
    /// The directory in which a path without a leading `/` starts.
    pub start: InodeRef,
    pub bytes: Box<[u8]>,
    pub follow_last: bool,
    /// The root is that of a mount: what lies above it, or behind an absolute link, is not known
    /// here. A walk that leads there fails with EXDEV. So does one over a link that the kernel may
    /// refuse to follow (`fs.protected_symlinks`), and one to the parent of its start if that may
    /// lie outside the mount or is not named to the caller.
    pub confined: bool,
}

impl Path {
    /// From the root of the volume, following a link at the end.
    pub fn new(bytes: &[u8]) -> Self {
        Self {
            root: InodeRef::ROOT,
            start: InodeRef::ROOT,
            bytes: bytes.into(),
            follow_last: true,
            confined: false,
        }
    }

    pub fn no_follow(bytes: &[u8]) -> Self {
        Self { follow_last: false, ..Self::new(bytes) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Component<'a> {
    /// A legal [`FileName`].
    Name(&'a [u8]),
    /// `.`: the component before it must be a directory.
    Here,
    /// `..`
    Up,
}

/// The components that are not walked yet. Each is examined when the walk reaches it, as Linux
/// does: a name that is too long behind one that is missing is ENOENT.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Components<'a> {
    bytes: Cow<'a, [u8]>,
    at: usize,
}

impl<'a> Components<'a> {
    pub(crate) fn of(path: &'a [u8]) -> Result<Self, Errno> {
        match path.len() {
            0 => Err(Errno::ENOENT),
            1..=SYMLINK_MAX => Ok(Self { bytes: path.into(), at: 0 }),
            _ => Err(Errno::ENAMETOOLONG),
        }
    }

    pub(crate) fn is_absolute(&self) -> bool {
        self.bytes[0] == b'/'
    }

    /// Whether the last name must lead to a directory.
    pub(crate) fn ends_with_slash(&self) -> bool {
        self.bytes.ends_with(b"/")
    }

    /// The next component, and whether it is the last one.
    pub(crate) fn next(&mut self) -> Result<Option<(Component<'_>, bool)>, Errno> {
        let rest = &self.bytes[self.at..];
        let Some(start) = rest.iter().position(|&byte| byte != b'/') else { return Ok(None) };
        let piece = rest[start..].split(|&byte| byte == b'/').next().unwrap_or_default();
        let end = start + piece.len();
        let is_last = rest[end..].iter().all(|&byte| byte == b'/');
        self.at += end;
        let component = match piece {
            b"." => Component::Here,
            b".." => Component::Up,
            name => {
                FileName::check(name)?;
                Component::Name(name)
            }
        };
        Ok(Some((component, is_last)))
    }

    /// Puts the target of a symbolic link before the remaining components. True if it starts at the
    /// root.
    pub(crate) fn expand(&mut self, target: &[u8]) -> Result<bool, Errno> {
        let is_absolute = Components::of(target)?.is_absolute();
        let rest = &self.bytes[self.at..];
        *self = Self { bytes: [target, rest].concat().into(), at: 0 };
        Ok(is_absolute)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(mut rest: Components<'_>) -> Result<String, Errno> {
        let mut text = String::from(if rest.is_absolute() { "/" } else { "" });
        let end = if rest.ends_with_slash() { "slash" } else { "" };
        let mut ended = false;
        while let Some((component, is_last)) = rest.next()? {
            assert!(!ended);
            ended = is_last;
            text += &match component {
                Component::Name(name) => format!("{} ", name.escape_ascii()),
                Component::Here => ". ".into(),
                Component::Up => ".. ".into(),
            };
        }
        Ok(text + end)
    }

    fn parse(path: &[u8]) -> Result<String, Errno> {
        text(Components::of(path)?)
    }

    #[test]
    fn slashes_dots_and_ends() {
        assert_eq!(parse(b"/a//b/./../c").as_deref(), Ok("/a b . .. c "));
        assert_eq!(parse(b"a/").as_deref(), Ok("a slash"));
        assert_eq!(parse(b"/").as_deref(), Ok("/slash"));
        assert_eq!(parse(b""), Err(Errno::ENOENT));
        assert_eq!(parse(&[b'x'; 256]), Err(Errno::ENAMETOOLONG));
        assert_eq!(parse(&[b'/'; 4096]), Err(Errno::ENAMETOOLONG));
    }

    #[test]
    fn a_target_goes_in_front() {
        for (path, target, whole) in [
            ("a/rest", "x/y", "x y rest "),
            ("a//rest/", "/x/", "/x rest slash"),
            ("a", "x/", "x slash"),
            ("a/", "x", "x slash"),
            ("a", "x", "x "),
        ] {
            let mut components = Components::of(path.as_bytes()).expect("a path");
            let next = components.next().map(|next| next.map(|(component, _)| component));
            assert_eq!(next, Ok(Some(Component::Name(b"a"))));
            assert_eq!(components.expand(b""), Err(Errno::ENOENT));
            assert_eq!(components.expand(target.as_bytes()), Ok(target.starts_with('/')));
            assert_eq!(text(components).as_deref(), Ok(whole), "{path} -> {target}");
        }
    }
}
