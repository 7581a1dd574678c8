//! The inode numbers that programs see, of the pool that serves this process.
//!
//! The kernel shows these numbers for files of the mount (`warren_base::InodeNumbers`), and so must
//! the library. They are set with an admission, before it is published, and stay after its end,
//! because descriptors of the mount stay. All admissions of a process are of one mount.

use core::sync::atomic::{
    AtomicU8,
    Ordering::{Acquire, Release},
};

use warren_base::{Ino, InodeNumbers};

/// The code of the numbers, plus one: that of [`InodeNumbers::STORED`] is 0.
pub(crate) struct ShownNumbers(AtomicU8);

const _: () = assert!(InodeNumbers::STORED.code().wrapping_add(1) == 0);

pub(crate) fn set(numbers: InodeNumbers) {
    ShownNumbers::here().0.store(numbers.code().wrapping_add(1), Release);
}

fn get() -> InodeNumbers {
    InodeNumbers::from_code(ShownNumbers::here().0.load(Acquire).wrapping_sub(1))
}

/// The number that programs see of an inode.
pub(crate) fn number_of(ino: Ino) -> u64 {
    get().number(ino)
}

/// The inode that the kernel shows with this number.
pub(crate) fn ino_of(number: u64) -> Ino {
    get().ino(number)
}
