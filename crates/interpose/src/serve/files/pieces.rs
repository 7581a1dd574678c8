//! The program's memory that a call reads into: one buffer, or those of a vector.

use crate::abi::{UIO_MAXIOV, nr};
use crate::call::SystemCall;

use super::super::memory;

/// The most that the kernel reads or writes at once.
pub(super) const READ_MAX: usize = 0x7fff_f000;
const PIECE: usize = size_of::<[usize; 2]>();

/// Buffers of the program.
pub(super) enum Pieces {
    /// Its start and its length.
    One(usize, usize),
    /// An array of `struct iovec`, and how many there are.
    Vector(usize, usize),
}

impl Pieces {
    /// The pieces that a call reads into, with the position if it names one. `None` if the kernel
    /// is to make the call.
    #[inline]
    pub(super) fn of_read(call: &SystemCall) -> Option<(Self, Option<isize>)> {
        let [_, second, third, ..] = call.args;
        let pieces = match call.number {
            nr::READ | nr::PREAD64 => Self::One(second, third),
            _ => Self::vector(second, third)?,
        };
        Some((pieces, position(call)?))
    }

    /// The pieces of a `struct iovec` array. `None` if the kernel would refuse or shorten them,
    /// which looks at all pieces first.
    #[inline(never)]
    fn vector(array: usize, count: usize) -> Option<Self> {
        let vector = (count <= UIO_MAXIOV).then_some(Self::Vector(array, count))?;
        let mut total = 0_usize;
        for at in 0..count {
            let (start, length) = piece(array, at)?;
            total = total.checked_add(length).filter(|total| *total <= READ_MAX)?;
            memory::is_range(start, length).then_some(())?;
        }
        Some(vector)
    }

    /// Reads into one piece after the other, until one is not filled. `read` is given a position in
    /// the file, and the start and the length of a piece. Returns how much was read.
    #[inline]
    pub(super) fn read(
        &self,
        offset: u64,
        mut read: impl FnMut(u64, usize, usize) -> Option<usize>,
    ) -> Option<usize> {
        let (array, count) = match *self {
            Self::One(start, length) => return read(offset, start, length),
            Self::Vector(array, count) => (array, count),
        };
        let mut done = 0;
        for at in 0..count {
            let (start, length) = piece(array, at)?;
            let count = read(offset + done as u64, start, length)?;
            done += count;
            if count < length {
                break;
            }
        }
        Some(done)
    }
}

/// The start and the length of one piece.
pub(super) fn piece(array: usize, at: usize) -> Option<(usize, usize)> {
    let [start, length] = memory::words::<2>(array.checked_add(at * PIECE)?)?;
    Some((start as usize, usize::try_from(length).ok()?))
}

/// The position at which a call reads or writes, or `None` for the offset of the descriptor. `None`
/// instead of both for flags, which the kernel is to obey.
#[inline]
pub(super) fn position(call: &SystemCall) -> Option<Option<isize>> {
    let [_, _, _, position, _, flags] = call.args;
    match call.number {
        nr::PREAD64 | nr::PWRITE64 | nr::PREADV | nr::PWRITEV => Some(Some(position.cast_signed())),
        nr::PREADV2 | nr::PWRITEV2 if flags as u32 != 0 => None,
        nr::PREADV2 | nr::PWRITEV2 if position == usize::MAX => Some(None),
        nr::PREADV2 | nr::PWRITEV2 => Some(Some(position.cast_signed())),
        _ => Some(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_where_the_kernel_has_them() {
        let of = |number, place: isize, flags| {
            let args = [3, 0, 0, place.cast_unsigned(), 7, flags];
            position(&SystemCall { number, args, return_address: 0 })
        };
        assert_eq!((of(nr::READ, 5, 0), of(nr::READV, 5, 1)), (Some(None), Some(None)));
        assert_eq!((of(nr::PREAD64, 5, 1), of(nr::PREADV, -1, 1)), (Some(Some(5)), Some(Some(-1))));
        assert_eq!((of(nr::PREADV2, -1, 0), of(nr::PREADV2, -2, 0)), (Some(None), Some(Some(-2))));
        assert_eq!((of(nr::PWRITEV2, 4, 0), of(nr::PWRITEV2, 4, 1)), (Some(Some(4)), None));
    }

    #[test]
    fn a_vector_is_filled_until_a_piece_is_not() {
        let iovecs = [[4096_usize, 3], [8192, 0], [12288, 5], [16384, 9]];
        let vector = Pieces::vector(iovecs.as_ptr() as usize, 4).expect("a vector");
        let mut left = 6;
        let mut seen = Vec::new();
        let count = vector.read(100, |at, start, length| {
            seen.push((at, start, length));
            let count = left.min(length);
            left -= count;
            Some(count)
        });
        assert_eq!(count, Some(6));
        assert_eq!(seen, [(100, 4096, 3), (103, 8192, 0), (103, 12288, 5)]);
        assert_eq!(vector.read(0, |_, _, _| None), None);
    }

    #[test]
    fn what_the_kernel_refuses_is_left_to_it() {
        let is_good = |iovecs: &[[usize; 2]], count| {
            Pieces::vector(iovecs.as_ptr() as usize, count).is_some()
        };
        assert!(is_good(&[[0, 0]], 1) && is_good(&[], 0));
        assert!(!is_good(&[[4096, usize::MAX]], 1), "a negative length");
        assert!(!is_good(&[[4096, READ_MAX], [4096, 1]], 2), "it is shortened");
        assert!(!is_good(&[[1 << 47, 1]], 1), "no memory of the program");
        assert!(!is_good(&[[0, 0]], UIO_MAXIOV + 1), "too many");
        assert!(Pieces::vector(8, 1).is_none() && Pieces::vector(usize::MAX, 1).is_none());
    }
}
