//! The error numbers that file-system calls return, with Linux's values.

use core::fmt;

/// A positive Linux error number. Zero is not an error and cannot be made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Errno(i32);

macro_rules! errnos {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Self = Self($value);)*

            fn known(self) -> Option<(&'static str, &'static str)> {
                match self.0 {
                    $($value => Some((stringify!($name), $text)),)*
                    _ => None,
                }
            }
        }
    };
}

errnos! {
    EPERM = 1, "operation not permitted";
    ENOENT = 2, "no such file or directory";
    EINTR = 4, "interrupted";
    EIO = 5, "input/output error";
    ENXIO = 6, "no such device or address";
    E2BIG = 7, "too big";
    EBADF = 9, "bad file descriptor";
    EAGAIN = 11, "try again";
    ENOMEM = 12, "out of memory";
    EACCES = 13, "permission denied";
    EBUSY = 16, "busy";
    EEXIST = 17, "exists";
    EXDEV = 18, "crosses devices";
    ENODEV = 19, "no such device";
    ENOTDIR = 20, "not a directory";
    EISDIR = 21, "is a directory";
    EINVAL = 22, "invalid argument";
    ENFILE = 23, "too many open files";
    ENOTTY = 25, "not a terminal";
    ETXTBSY = 26, "text file busy";
    EFBIG = 27, "file too large";
    ENOSPC = 28, "no space left";
    EROFS = 30, "read-only";
    EMLINK = 31, "too many links";
    ERANGE = 34, "out of range";
    EDEADLK = 35, "deadlock";
    ENAMETOOLONG = 36, "name too long";
    ENOLCK = 37, "no room for a lock";
    ENOSYS = 38, "not implemented";
    ENOTEMPTY = 39, "directory not empty";
    ELOOP = 40, "too many symbolic links";
    ENODATA = 61, "no data";
    EPROTO = 71, "protocol error";
    EOVERFLOW = 75, "value too large";
    EOPNOTSUPP = 95, "not supported";
    ESTALE = 116, "stale handle";
    EUCLEAN = 117, "structure needs cleaning";
    EDQUOT = 122, "quota exceeded";
}

impl Errno {
    /// The largest number that is taken for an errno.
    pub const MAX: i32 = 4095;

    /// The errno with this number, if it can be one.
    pub const fn from_raw(raw: i32) -> Option<Self> {
        if raw >= 1 && raw <= Self::MAX { Some(Self(raw)) } else { None }
    }

    pub const fn raw(self) -> i32 {
        self.0
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some((_, text)) => f.write_str(text),
            None => write!(f, "error {}", self.0),
        }
    }
}

impl core::error::Error for Errno {}
