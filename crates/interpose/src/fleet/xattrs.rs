//! Extended attributes of open files. All of this is slow, under the lock.

use alloc::boxed::Box;
use alloc::vec::Vec;

use warren_base::Errno;
use warren_proto::{InodeRef, Reply, Request, XattrMode, XattrName};

use super::client::{Found, slow};

/// The names, each with a zero behind it.
pub(crate) fn list(node: InodeRef) -> Option<Vec<u8>> {
    match slow()?.ask(node, Request::ListXattr { ino: node.ino }).answer {
        Ok(Reply::XattrNames(names)) => {
            Some(names.iter().flat_map(|name| name.iter().copied().chain([0])).collect())
        }
        _ => None,
    }
}

pub(crate) fn get(node: InodeRef, name: &XattrName) -> Found<Box<[u8]>> {
    let Some(slow) = slow() else { return Found::Kernel };
    match slow.ask(node, Request::GetXattr { ino: node.ino, name: name.clone() }).answer {
        Ok(Reply::Xattr(value)) => Found::Is(value),
        Err(Errno::ENODATA) => Found::Fails(Errno::ENODATA),
        _ => Found::Kernel,
    }
}

pub(crate) fn set(
    node: InodeRef,
    name: &XattrName,
    value: Box<[u8]>,
    mode: XattrMode,
) -> Found<()> {
    let Some(slow) = slow() else { return Found::Kernel };
    let request = Request::SetXattr { ino: node.ino, name: name.clone(), value, mode };
    match slow.ask(node, request).answer {
        Ok(_) => Found::Is(()),
        Err(errno @ (Errno::EEXIST | Errno::ENODATA)) => Found::Fails(errno),
        Err(_) => Found::Kernel,
    }
}
