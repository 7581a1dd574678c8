//! A path as a program gives it, cut into components.

use std::collections::VecDeque;

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
}

impl Path {
    /// From the root of the volume, following a link at the end.
    pub fn new(bytes: &[u8]) -> Self {
        Self { root: InodeRef::ROOT, start: InodeRef::ROOT, bytes: bytes.into(), follow_last: true }
    }

    pub fn no_follow(bytes: &[u8]) -> Self {
        Self { follow_last: false, ..Self::new(bytes) }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Component {
    Name(FileName),
    /// `.`: the component before it must be a directory.
    Here,
    /// `..`
    Up,
}

/// The components that are not walked yet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Components {
    pub absolute: bool,
    /// The last name must lead to a directory.
    pub slash: bool,
    pub todo: VecDeque<Component>,
}

impl Components {
    pub(crate) fn parse(path: &[u8]) -> Result<Self, Errno> {
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        if path.len() > SYMLINK_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let mut todo = VecDeque::with_capacity(4);
        for piece in path.split(|&b| b == b'/') {
            match piece {
                b"" => {}
                b"." => todo.push_back(Component::Here),
                b".." => todo.push_back(Component::Up),
                name => todo.push_back(Component::Name(FileName::new(name)?)),
            }
        }
        Ok(Self { absolute: path[0] == b'/', slash: path.ends_with(b"/"), todo })
    }

    /// Puts the target of a symbolic link before the remaining components. True if it starts at the
    /// root.
    pub(crate) fn expand(&mut self, target: &[u8]) -> Result<bool, Errno> {
        let mut front = Self::parse(target)?;
        self.slash |= front.slash && self.todo.is_empty();
        front.todo.append(&mut self.todo);
        self.todo = front.todo;
        Ok(front.absolute)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &[u8]) -> Result<String, Errno> {
        let components = Components::parse(path)?;
        let mut text = String::from(if components.absolute { "/" } else { "" });
        let end = if components.slash { "slash" } else { "" };
        for component in components.todo {
            text += &match component {
                Component::Name(name) => format!("{name:?} "),
                Component::Here => ". ".into(),
                Component::Up => ".. ".into(),
            };
        }
        Ok(text + end)
    }

    #[test]
    fn slashes_dots_and_ends() {
        assert_eq!(text(b"/a//b/../c").as_deref(), Ok("/\"a\" \"b\" .. \"c\" "));
        assert_eq!(text(b"a/").as_deref(), Ok("\"a\" slash"));
        assert_eq!(text(b"/").as_deref(), Ok("/slash"));
        assert_eq!(text(b""), Err(Errno::ENOENT));
        assert_eq!(text(&[b'x'; 256]), Err(Errno::ENAMETOOLONG));
        assert_eq!(text(&[b'/'; 4096]), Err(Errno::ENAMETOOLONG));
    }

    #[test]
    fn a_target_goes_in_front() {
        let mut components = Components::parse(b"rest").expect("a path");
        assert_eq!(components.expand(b"/x/"), Ok(true));
        assert!(components.todo.len() == 2 && !components.slash);
        assert_eq!(components.expand(b""), Err(Errno::ENOENT));
    }
}
