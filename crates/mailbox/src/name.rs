//! Hierarchical names of mailboxes: `/cell/3/inbox`, `/supervisor`.
//!
//! A name has one spelling: it begins with a slash, does not end with one, has no empty part, and
//! its letters are `a-z 0-9 - _ .`, where `.` and `..` are no parts. So equal names are equal
//! bytes.

use std::fmt;

use warren_proto::{Malformed, Reader, Wire};

use crate::{NAME_BYTES_MAX, NAME_PARTS_MAX};

/// A valid mailbox name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Box<str>);

/// Why a text is no mailbox name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadName {
    /// It does not begin with a slash, or is only a slash.
    NotAbsolute,
    /// More than [`NAME_BYTES_MAX`] bytes.
    TooLong,
    /// More than [`NAME_PARTS_MAX`] parts.
    TooDeep,
    /// An empty part, `.` or `..`.
    BadPart,
    /// A letter outside `a-z 0-9 - _ .`.
    BadLetter,
}

impl Name {
    /// Checks `text`, which is not trusted.
    pub fn new(text: &str) -> Result<Self, BadName> {
        if text.len() > NAME_BYTES_MAX {
            return Err(BadName::TooLong);
        }
        let parts = text.strip_prefix('/').ok_or(BadName::NotAbsolute)?;
        if parts.is_empty() {
            return Err(BadName::NotAbsolute);
        }
        if parts.split('/').count() > NAME_PARTS_MAX {
            return Err(BadName::TooDeep);
        }
        parts.split('/').try_for_each(check_part)?;
        Ok(Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn check_part(part: &str) -> Result<(), BadName> {
    if matches!(part, "" | "." | "..") {
        return Err(BadName::BadPart);
    }
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.".contains(&b);
    if part.bytes().all(allowed) { Ok(()) } else { Err(BadName::BadLetter) }
}

impl Wire for Name {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.0.len() as u8);
        out.extend_from_slice(self.0.as_bytes());
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let len = u8::decode(from)?;
        let bytes = from.take(usize::from(len))?;
        let text =
            std::str::from_utf8(bytes).map_err(|_| Malformed::new("illegal mailbox name"))?;
        Self::new(text).map_err(|_| Malformed::new("illegal mailbox name"))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAbsolute => "a mailbox name begins with a slash and has a part",
            Self::TooLong => "the mailbox name is too long",
            Self::TooDeep => "the mailbox name has too many parts",
            Self::BadPart => "a part of the mailbox name is empty, `.` or `..`",
            Self::BadLetter => "a mailbox name is made of a-z, 0-9, -, _ and .",
        })
    }
}

impl std::error::Error for BadName {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_spelling() {
        assert!(Name::new("/cell/3/inbox").is_ok());
        let refused = [
            ("", BadName::NotAbsolute),
            ("/", BadName::NotAbsolute),
            ("cell", BadName::NotAbsolute),
            ("/cell/", BadName::BadPart),
            ("//cell", BadName::BadPart),
            ("/cell/../supervisor", BadName::BadPart),
            ("/./cell", BadName::BadPart),
            ("/Cell", BadName::BadLetter),
            ("/cell\0", BadName::BadLetter),
            ("/1/2/3/4/5/6/7/8/9", BadName::TooDeep),
        ];
        for (text, why) in refused {
            assert_eq!(Name::new(text), Err(why), "{text:?}");
        }
        let longest = format!("/{}", "x".repeat(NAME_BYTES_MAX - 1));
        assert!(Name::new(&longest).is_ok());
        assert_eq!(Name::new(&format!("{longest}x")), Err(BadName::TooLong));
    }

    #[test]
    fn only_a_legal_name_is_decoded() {
        let name = Name::new("/cell/3").unwrap();
        assert_eq!(Name::from_bytes(&name.to_bytes()), Ok(name));
        for bad in [&b"\x00"[..], b"\x02/", b"\x02/A", b"\x02/\xff", b"\x03/a/"] {
            assert!(Name::from_bytes(bad).is_err(), "{bad:?}");
        }
    }
}
