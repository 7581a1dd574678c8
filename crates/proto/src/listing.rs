//! The entries of a directory listing.
//!
//! ```text
//! |ino 8|kind 1|cookie 8|length of name 1|name|  for each entry
//! ```
//!
//! A part of a listing has hundreds of names. They stay encoded, so that neither the cell nor the
//! client allocates memory for each of them.

use alloc::vec::Vec;
use core::fmt;

use warren_base::{Errno, FileKind, Ino};

use crate::{FileName, Malformed, Reader, Wire};

/// One entry of a directory listing. The next page starts after `cookie`.
#[derive(Clone, PartialEq, Eq, Debug, Wire)]
pub struct DirEntry {
    pub ino: Ino,
    pub kind: FileKind,
    pub cookie: u64,
    pub name: FileName,
}

/// The encoded bytes of an entry without its name.
pub const DIR_ENTRY_BYTES: usize = 8 + 1 + 8 + 1;

/// An entry. The names of [`DirEntries`] are legal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListedEntry<'a> {
    pub ino: Ino,
    pub kind: FileKind,
    pub cookie: u64,
    pub name: &'a [u8],
}

fn take<'a>(from: &mut Reader<'a>) -> Result<ListedEntry<'a>, Malformed> {
    let (ino, kind) = (Ino::decode(from)?, FileKind::decode(from)?);
    let (cookie, len) = (u64::decode(from)?, u8::decode(from)?);
    Ok(ListedEntry { ino, kind, cookie, name: from.take(usize::from(len))? })
}

/// Entries of a directory. `bytes` are `count` legal entries, and `last` is the cookie of the last
/// one.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct DirEntries {
    count: u32,
    last: Option<u64>,
    bytes: Vec<u8>,
}

impl DirEntries {
    pub const fn new() -> Self {
        Self { count: 0, last: None, bytes: Vec::new() }
    }

    /// No entries, with memory for so many encoded bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), ..Self::new() }
    }

    /// The number of entries.
    pub const fn len(&self) -> usize {
        self.count as usize
    }

    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The cookie of the last entry, where the next page continues.
    pub const fn last_cookie(&self) -> Option<u64> {
        self.last
    }

    /// Adds an entry. For an illegal name it adds nothing, and the errors are those of
    /// [`FileName::new`].
    #[inline]
    pub fn push(
        &mut self,
        ino: Ino,
        kind: FileKind,
        cookie: u64,
        name: &[u8],
    ) -> Result<(), Errno> {
        FileName::check(name)?;
        let mut head = [0; DIR_ENTRY_BYTES];
        head[..8].copy_from_slice(&ino.0.to_le_bytes());
        head[8] = kind as u8;
        head[9..17].copy_from_slice(&cookie.to_le_bytes());
        // A legal name is shorter than 256 bytes.
        head[17] = name.len() as u8;
        self.bytes.extend_from_slice(&head);
        self.bytes.extend_from_slice(name);
        (self.count, self.last) = (self.count + 1, Some(cookie));
        Ok(())
    }

    /// Adds the entries of the next page.
    pub fn append(&mut self, next: &Self) {
        self.bytes.extend_from_slice(&next.bytes);
        (self.count, self.last) = (self.count + next.count, next.last.or(self.last));
    }

    /// The entries in their order.
    pub fn iter(&self) -> impl Iterator<Item = ListedEntry<'_>> {
        let mut reader = Reader::new(&self.bytes);
        (0..self.count).map(move |_| take(&mut reader).expect("the entries are legal"))
    }

    /// Copies of the entries.
    pub fn to_vec(&self) -> Vec<DirEntry> {
        let owned = |ListedEntry { ino, kind, cookie, name }: ListedEntry<'_>| {
            let name = FileName::new(name).expect("the names are legal");
            DirEntry { ino, kind, cookie, name }
        };
        self.iter().map(owned).collect()
    }
}

impl FromIterator<DirEntry> for DirEntries {
    fn from_iter<T: IntoIterator<Item = DirEntry>>(entries: T) -> Self {
        let mut all = Self::new();
        for entry in entries {
            entry.encode(&mut all.bytes);
            (all.count, all.last) = (all.count + 1, Some(entry.cookie));
        }
        all
    }
}

impl fmt::Debug for DirEntries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The encoding is that of a `Vec<DirEntry>`.
impl Wire for DirEntries {
    fn encode(&self, out: &mut Vec<u8>) {
        self.count.encode(out);
        out.extend_from_slice(&self.bytes);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let count = u32::decode(from)?;
        let all = from.rest();
        let mut last = None;
        for _ in 0..count {
            let entry = take(from)?;
            FileName::check(entry.name).map_err(|_| Malformed::new("illegal file name"))?;
            last = Some(entry.cookie);
        }
        let bytes = all[..all.len() - from.left()].into();
        Ok(Self { count, last, bytes })
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn entry(cookie: u64, name: &[u8]) -> DirEntry {
        let (ino, kind) = (Ino(1 << 48 | cookie), FileKind::Directory);
        DirEntry { ino, kind, cookie, name: FileName::new(name).expect("a legal name") }
    }

    #[test]
    fn entries_are_encoded_like_a_vector_of_them() {
        for listed in [vec![], vec![entry(7, b"a")], vec![entry(7, b"a"), entry(9, &[b'x'; 255])]] {
            let mut entries = DirEntries::new();
            for DirEntry { ino, kind, cookie, name } in &listed {
                assert_eq!(entries.push(*ino, *kind, *cookie, name.as_bytes()), Ok(()));
            }
            assert_eq!(entries, listed.iter().cloned().collect());
            assert_eq!(entries.to_bytes(), listed.to_bytes());
            assert_eq!(DirEntries::from_bytes(&listed.to_bytes()), Ok(entries.clone()));
            assert_eq!(entries.to_vec(), listed);
            assert_eq!(entries.len(), listed.len());
            assert_eq!(entries.last_cookie(), listed.last().map(|entry| entry.cookie));
        }
    }

    #[test]
    fn an_illegal_name_is_not_added() {
        let mut entries = DirEntries::new();
        assert_eq!(entries.push(Ino(3), FileKind::Regular, 1, b"a/b"), Err(Errno::EINVAL));
        assert_eq!(entries, DirEntries::new());
    }

    #[test]
    fn illegal_entries_are_refused() {
        let good = vec![entry(7, b"ab"), entry(8, b"c")].to_bytes();
        assert!(DirEntries::from_bytes(&good).is_ok());
        for (at, byte) in [(0, 3), (0, 1), (4 + 8, 99), (4 + 18, b'/'), (4 + 17, 0)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert!(DirEntries::from_bytes(&bad).is_err(), "byte {at}");
        }
        assert!(DirEntries::from_bytes(&good[..good.len() - 1]).is_err());
        assert!(DirEntries::from_bytes(&u32::MAX.to_bytes()).is_err());
    }

    #[test]
    fn pages_are_appended() {
        let mut all: DirEntries = [entry(7, b"a")].into_iter().collect();
        all.append(&DirEntries::new());
        assert_eq!(all.last_cookie(), Some(7));
        all.append(&[entry(8, b"b")].into_iter().collect());
        assert_eq!(all.to_vec(), [entry(7, b"a"), entry(8, b"b")]);
    }
}
