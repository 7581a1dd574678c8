//! Requests on extended attributes.

use warren_base::{Ino, Rng};
use warren_proto::{Request, XattrMode, XattrName};

/// Names of attributes, one of which no file has.
const XATTRS: [&[u8]; 6] =
    [b"user.a", b"user.b", b"user.c", b"trusted.a", b"security.a", b"security.capability"];

pub(super) fn request(ino: Ino, rng: &mut Rng) -> Request {
    let name = *rng.pick(&XATTRS);
    let name = XattrName::new(name).expect("a legal name");
    match rng.below(5) {
        0 => Request::GetXattr { ino, name },
        1 => Request::ListXattr { ino },
        2 => Request::RemoveXattr { ino, name },
        _ => {
            let modes = [XattrMode::Any, XattrMode::Create, XattrMode::Replace];
            let mode = *rng.pick(&modes);
            let len = *rng.pick(&[0, 10, 1000]);
            let value = vec![rng.below(256) as u8; len].into();
            Request::SetXattr { ino, name, value, mode }
        }
    }
}
