//! Access control lists among the attributes of an inode.

use warren_base::InodeFlags;
use warren_disk::{Xattr, XattrValue};
use warren_proto::Acl;

/// Whether the attribute is no list, or one that a cell can read. Lists are short and never in
/// pieces.
pub(crate) fn is_legal(xattr: &Xattr) -> bool {
    let kind = InodeFlags::of_xattr(&xattr.name);
    !kind.intersects(InodeFlags::ACL | InodeFlags::DEFAULT_ACL)
        || matches!(&xattr.value, XattrValue::Inline(list) if Acl::from_xattr(list).is_ok())
}
