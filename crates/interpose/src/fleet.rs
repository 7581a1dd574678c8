//! The client of the fleet, as far as `serve` needs it.
//!
//! This one knows no fleet: it admits nothing, so that the kernel makes every call.

use core::ops::{Deref, Range};

use warren_base::Errno;
use warren_proto::{Attr, InodeRef};

/// What the fleet answers.
#[allow(dead_code, reason = "this one knows no fleet")]
pub(crate) enum Found<T> {
    Is(T),
    Fails(Errno),
    /// The kernel must make the call: the path leaves the tree, or the fleet is gone or too slow.
    Kernel,
}

/// A client that the fleet has admitted.
pub(crate) struct Admitted {
    /// The descriptors that stay open.
    pub descriptors: Range<usize>,
    /// The attributes of the root directory.
    pub root: Attr,
}

/// The target of a symbolic link.
pub(crate) struct Target;

impl Deref for Target {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &[]
    }
}

/// Becomes a client of the fleet that serves `pool`. Slow, under the lock. Descriptors that stay
/// open are moved to numbers from `first_descriptor` on.
pub(crate) fn admit(
    _pool: &[u8],
    _runtime_dir: Option<&[u8]>,
    _first_descriptor: usize,
) -> Result<Admitted, &'static str> {
    Err("no client yet")
}

/// Unmaps and closes everything. Slow, under the lock.
pub(crate) fn end() {}

/// In a child of `fork`, which has no copy of the shared memory: closes the inherited descriptors.
pub(crate) fn forget() {}

/// Whether the fleet still holds this admission. One poll.
pub(crate) fn is_alive() -> bool {
    false
}

/// The attributes of the inode at `path`, from what is known without a request. It neither
/// allocates nor locks, and may run in a signal handler. `path` is relative to `start`, not empty,
/// and does not begin with a slash.
pub(crate) fn known(
    _path: &[u8],
    _start: InodeRef,
    _follow_last: bool,
) -> Option<Result<Attr, Errno>> {
    None
}

/// The same by a walk. Slow, under the lock.
pub(crate) fn stat(_path: &[u8], _start: InodeRef, _follow_last: bool) -> Found<Attr> {
    Found::Kernel
}

/// Slow, under the lock.
pub(crate) fn read_link(_path: &[u8], _start: InodeRef) -> Found<Target> {
    Found::Kernel
}

/// A directory by its path from the root. Slow, under the lock.
pub(crate) fn directory(_path: &[u8]) -> Found<(InodeRef, Attr)> {
    Found::Kernel
}
