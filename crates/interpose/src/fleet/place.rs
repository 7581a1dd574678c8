//! The place of a call: a path, and how it is walked.

use warren_client::Path;
use warren_proto::InodeRef;

/// A path as the client walks it: from `start`, or from the directory that is mounted if it begins
/// with a slash.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub path: &'a [u8],
    pub start: InodeRef,
    /// Whether a link at the end of the path is followed.
    pub follow_last: bool,
}

impl Place<'_> {
    /// The path for a request. `root` is the directory that is mounted.
    pub(super) fn path(&self, root: InodeRef) -> Path {
        let &Self { path, start, follow_last } = self;
        Path { root, start, follow_last, confined: true, ..Path::new(path) }
    }
}
