//! A file that is read whole, and compared with what must be in it.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Opens, reads and closes a file, which must have that length and consist of that byte.
pub(super) fn read_whole(
    path: &Path,
    length: usize,
    byte: u8,
    buffer: &mut Vec<u8>,
) -> io::Result<()> {
    buffer.clear();
    File::open(path)?.read_to_end(buffer)?;
    if buffer.len() == length && buffer.iter().all(|found| *found == byte) {
        return Ok(());
    }
    let found = buffer.len();
    let why = format!("{}: {found} bytes, not {length}, or not those written", path.display());
    Err(io::Error::other(why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_are_an_error() {
        let path = std::env::temp_dir().join(format!("warren-whole-{}", std::process::id()));
        std::fs::write(&path, [7; 10]).expect("a file");
        let mut buffer = Vec::new();
        assert!(read_whole(&path, 10, 7, &mut buffer).is_ok());
        assert!(read_whole(&path, 9, 7, &mut buffer).is_err());
        assert!(read_whole(&path, 10, 8, &mut buffer).is_err());
        std::fs::remove_file(path).expect("cleanup");
    }
}
