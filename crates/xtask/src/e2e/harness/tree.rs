//! A directory tree, in lines that two file systems must agree on.
//!
//! Of a file: type and mode, owner, links, size and a hash of its bytes. Of a symbolic link its
//! target. Of a directory neither size nor links, which file systems are free to choose.

use std::fs::{self, Metadata};
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use anyhow::{Context, Result};

/// Files longer than this are compared by size and by their first bytes: sparse ones may be huge.
const HASHED_BYTES_MAX: u64 = 64 << 20;

/// One line for each entry below `root`, in the order of names.
pub(crate) fn listing(root: &Path) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    list(root, root, &mut lines)?;
    Ok(lines)
}

fn list(root: &Path, directory: &Path, lines: &mut Vec<String>) -> Result<()> {
    let reading = || format!("cannot list {}", directory.display());
    let mut entries: Vec<_> = fs::read_dir(directory)
        .with_context(reading)?
        .collect::<Result<_, _>>()
        .with_context(reading)?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let found = fs::symlink_metadata(&path)
            .with_context(|| format!("{} is listed but cannot be found", path.display()))?;
        let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        lines.push(format!("{name} {}", describe(&path, &found)?));
        if found.is_dir() {
            list(root, &path, lines)?;
        }
    }
    Ok(())
}

fn describe(path: &Path, found: &Metadata) -> Result<String> {
    let kind = found.file_type();
    let owner = format!("{:o} {}:{}", found.mode(), found.uid(), found.gid());
    if kind.is_dir() {
        return Ok(owner);
    }
    let rest = if kind.is_symlink() {
        fs::read_link(path)
            .with_context(|| path.display().to_string())?
            .to_string_lossy()
            .into_owned()
    } else if kind.is_file() {
        format!("{} bytes {:016x}", found.len(), hash(path)?)
    } else if kind.is_fifo() || kind.is_socket() {
        String::from("special")
    } else {
        format!("device {}", found.rdev())
    };
    Ok(format!("{owner} {} links {rest}", found.nlink()))
}

/// Not cryptographic: the tree is not hostile.
fn hash(path: &Path) -> Result<u64> {
    let file = fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut file = file.take(HASHED_BYTES_MAX);
    let mut hasher = DefaultHasher::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read =
            file.read(&mut buffer).with_context(|| format!("cannot read {}", path.display()))?;
        if read == 0 {
            return Ok(hasher.finish());
        }
        hasher.write(&buffer[..read]);
    }
}

/// The first lines in which two texts differ, `-` for expected and `+` for found lines.
pub(crate) fn differences<'a>(
    expected: impl IntoIterator<Item = &'a str>,
    found: impl IntoIterator<Item = &'a str>,
) -> Vec<String> {
    const LINES_MAX: usize = 8;
    let mut expected = expected.into_iter();
    let mut found = found.into_iter();
    let mut lines = Vec::new();
    while lines.len() < LINES_MAX {
        match (expected.next(), found.next()) {
            (None, None) => break,
            (a, b) if a == b => {}
            (a, b) => {
                lines.extend(a.map(|line| format!("  - {line}")));
                lines.extend(b.map(|line| format!("  + {line}")));
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_property_that_counts_changes_a_line() {
        let place = std::env::temp_dir().join(format!("warren-tree-{}", std::process::id()));
        fs::create_dir(&place).expect("directory");
        let file = place.join("file");
        fs::write(&file, "one").expect("write");
        let first = listing(&place).expect("list");
        fs::write(&file, "two").expect("write");
        let second = listing(&place).expect("list");
        fs::hard_link(&file, place.join("link")).expect("link");
        let third = listing(&place).expect("list");
        fs::remove_dir_all(&place).expect("cleanup");
        assert_ne!(first, second);
        assert_ne!(second[0], third[0]);
        assert_eq!(third.len(), 2);
    }

    #[test]
    fn differences_name_both_sides() {
        assert!(differences(["a", "b"], ["a", "b"]).is_empty());
        assert_eq!(differences(["a", "b"], ["a", "c", "d"]), ["  - b", "  + c", "  + d"]);
    }
}
