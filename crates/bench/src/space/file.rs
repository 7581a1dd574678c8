//! Files that are written until they are whole or there is no space.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Bytes of a write to a large file.
const PIECE: usize = 1 << 20;

pub(super) fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::StorageFull
}

/// Makes a file of so many bytes. Returns the bytes that were written, also if there is an error.
pub(super) fn write(path: &Path, size: u64) -> (u64, io::Result<()>) {
    let piece = vec![7; PIECE.min(size as usize)];
    let mut written = 0;
    let result = File::create_new(path).and_then(|mut file| {
        while written < size {
            let rest = piece.len().min((size - written) as usize);
            written += file.write(&piece[..rest])? as u64;
        }
        Ok(())
    });
    (written, result)
}
