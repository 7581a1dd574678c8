//! The content of a file. `Debug` prints runs of equal bytes, so that a failed comparison can be
//! read.

use std::fmt;

use warren_base::limits::BLOCK_SIZE;

pub(crate) const PAGE: usize = BLOCK_SIZE;

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Bytes(pub Vec<u8>);

/// A page full of the byte.
pub(crate) fn page(byte: u8) -> Bytes {
    Bytes(vec![byte; PAGE])
}

impl Bytes {
    pub(crate) fn repeat(&self, count: usize) -> Self {
        Self(self.0.repeat(count))
    }

    /// This, and the other behind it.
    pub(crate) fn then(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl<const N: usize> PartialEq<&[u8; N]> for Bytes {
    fn eq(&self, other: &&[u8; N]) -> bool {
        self.0 == *other
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.len() < 100 {
            return write!(f, "\"{}\"", self.0.escape_ascii());
        }
        let runs = self.0.chunk_by(|a, b| a == b).map(|run| format!("{} of {}", run.len(), run[0]));
        f.debug_list().entries(runs.take(20)).finish()
    }
}
