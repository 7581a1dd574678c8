//! A call site: which instruction before a `syscall` becomes a jump, and what the trampoline does.
//!
//! ```text
//!   80 3d .. .. .. .. 00   cmpb $0,__libc_single_threaded   ◀─ jmp to the trampoline (5 bytes)
//!   74 13                  je  ...                             these stay as they are
//!   31 c0                  xor %eax,%eax
//!   0f 05                  syscall
//! ```
//!
//! One instruction of at least five bytes in the straight line before the `syscall` is overwritten.
//! Mostly it is `mov $nr,%eax`. The trampoline contains a copy of it and of all that follow it, and
//! then enters the stub page. No branch can lead into the middle of one instruction. A branch to a
//! later one, or to the `syscall`, finds it as it was, and dispatch catches the call. So no
//! knowledge of branches is needed, only boundaries of instructions. They are found by decoding
//! from the start of the function, which the unwind information of the object gives. What is left
//! of a longer instruction is filled with `nop`, so that a later decoding still finds the
//! boundaries.

use core::arch::x86_64::{
    _mm_and_si128, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8,
};

use crate::decode::{Instruction, Kind, LENGTH_MAX, instruction};

/// Instructions that a trampoline repeats.
const REPEATED_MAX: usize = 6;
/// The bytes of `jmp rel32`.
const JUMP: usize = 5;
/// The bytes of `syscall`.
pub(crate) const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// The bytes of a trampoline: what is repeated, `lea` and `jmp`.
pub(crate) const CODE_MAX: usize = REPEATED_MAX * LENGTH_MAX + 13;

/// The bytes of a vector.
const LANES: usize = 16;
const NOP: u8 = 0x90;

/// A place to patch, as offsets into the function's code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site {
    /// The instruction that becomes a jump.
    pub start: usize,
    /// The `syscall`.
    pub call: usize,
    repeated: [Instruction; REPEATED_MAX],
    count: usize,
    /// The machine code of `repeated`.
    bytes: [u8; REPEATED_MAX * LENGTH_MAX],
}

impl Site {
    /// Whether the instruction that becomes a jump is `mov $number,%eax`, directly before the call.
    pub(crate) fn loads(&self, number: usize) -> bool {
        let immediate = u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes();
        self.count == 1 && self.bytes[0] == 0xb8 && self.bytes[1..JUMP] == immediate
    }

    /// The length of the instruction that becomes a jump.
    pub(crate) fn length(&self) -> usize {
        usize::from(self.repeated[0].length)
    }
}

/// The machine code of a trampoline.
pub(crate) struct Code {
    pub bytes: [u8; CODE_MAX],
    pub length: usize,
}

/// The site whose `syscall` is at `call` in `function`. `accepts` is asked about the start and
/// the length of the instruction that would become a jump.
pub(crate) fn find(
    function: &[u8],
    call: usize,
    accepts: impl Fn(usize, usize) -> bool,
) -> Option<Site> {
    let mut before: [(usize, Option<Instruction>); REPEATED_MAX] = [(0, None); REPEATED_MAX];
    let mut at = 0;
    while at < call {
        let next = instruction(&function[at..])?;
        before.rotate_left(1);
        before[REPEATED_MAX - 1] = (at, Some(next));
        at += usize::from(next.length);
    }
    if at != call || !function[call..].starts_with(&SYSCALL) {
        return None;
    }
    for first in (0..REPEATED_MAX).rev() {
        let (start, Some(found)) = before[first] else { return None };
        if found.kind == Kind::Leaves {
            return None;
        }
        let length = usize::from(found.length);
        if length >= JUMP && accepts(start, length) {
            let none = Instruction { length: 0, kind: Kind::Plain };
            let mut repeated = [none; REPEATED_MAX];
            for (to, (_, from)) in repeated.iter_mut().zip(&before[first..]) {
                *to = from.unwrap_or(none);
            }
            let mut bytes = [0; REPEATED_MAX * LENGTH_MAX];
            bytes[..call - start].copy_from_slice(&function[start..call]);
            return Some(Site { start, call, repeated, count: REPEATED_MAX - first, bytes });
        }
    }
    None
}

impl Code {
    fn new() -> Self {
        Self { bytes: [0; CODE_MAX], length: 0 }
    }

    fn add(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }
}

/// The trampoline of a site. `function`, `trampoline` and `entry` are addresses. `entry` holds the
/// address of the entry.
pub(crate) fn trampoline(
    site: &Site,
    function: usize,
    trampoline: usize,
    entry: usize,
) -> Option<Code> {
    let mut out = Code::new();
    let mut at = 0;
    for repeated in &site.repeated[..site.count] {
        let length = usize::from(repeated.length);
        let bytes = &site.bytes[at..at + length];
        at += length;
        repeat(&mut out, *repeated, bytes, function + site.start + at, trampoline)?;
    }
    let behind = function + site.call + SYSCALL.len();
    // lea behind(%rip),%rcx
    out.add(&[0x48, 0x8d, 0x0d]);
    let distance = distance(trampoline + out.length + 4, behind)?;
    out.add(&distance);
    // jmp *entry(%rip)
    out.add(&[0xff, 0x25]);
    let distance = self::distance(trampoline + out.length + 4, entry)?;
    out.add(&distance);
    Some(out)
}

/// The jump from the site, at address `start`, to its trampoline. What is left of the instruction
/// that was there is filled. Only the first [`Site::length`] bytes count.
pub(crate) fn jump(start: usize, trampoline: usize) -> Option<[u8; LENGTH_MAX]> {
    let mut jump = [NOP; LENGTH_MAX];
    jump[0] = 0xe9;
    jump[1..JUMP].copy_from_slice(&distance(start + JUMP, trampoline)?);
    Some(jump)
}

/// The first `syscall` in `text`. It looks at sixteen places at once, because the C library has
/// more than a million.
pub(crate) fn find_call(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    while at + LANES < text.len() {
        // SAFETY: SSE2 is part of x86-64, and both loads end at or before the end of the text.
        let found = unsafe {
            let start = text.as_ptr().add(at);
            let first = _mm_loadu_si128(start.cast());
            let second = _mm_loadu_si128(start.add(1).cast());
            let first = _mm_cmpeq_epi8(first, _mm_set1_epi8(SYSCALL[0] as i8));
            let second = _mm_cmpeq_epi8(second, _mm_set1_epi8(SYSCALL[1] as i8));
            _mm_movemask_epi8(_mm_and_si128(first, second))
        };
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize);
        }
        at += LANES;
    }
    let rest = text[at..].windows(SYSCALL.len()).position(|bytes| bytes == SYSCALL)?;
    Some(at + rest)
}

/// Repeats an instruction that ends before address `end`.
fn repeat(out: &mut Code, of: Instruction, bytes: &[u8], end: usize, to: usize) -> Option<()> {
    match of.kind {
        Kind::Plain => out.add(bytes),
        Kind::Relative(offset) => {
            let offset = usize::from(offset);
            let target = end.wrapping_add_signed(near(bytes, offset));
            let distance = distance(to + out.length + bytes.len(), target)?;
            out.add(&bytes[..offset]);
            out.add(&distance);
            out.add(&bytes[offset + 4..]);
        }
        // Either becomes one with a displacement of four bytes.
        Kind::ShortBranch(offset) | Kind::NearBranch(offset) => {
            let offset = usize::from(offset);
            let (condition, displacement) = match of.kind {
                Kind::NearBranch(_) => (bytes[offset - 1], near(bytes, offset)),
                _ => (bytes[offset - 1] + 0x10, bytes[offset] as i8 as isize),
            };
            out.add(&[0x0f, condition]);
            let target = end.wrapping_add_signed(displacement);
            let distance = distance(to + out.length + 4, target)?;
            out.add(&distance);
        }
        Kind::Leaves => return None,
    }
    Some(())
}

/// The displacement of four bytes at `offset`.
fn near(bytes: &[u8], offset: usize) -> isize {
    let mut displacement = [0; 4];
    displacement.copy_from_slice(&bytes[offset..offset + 4]);
    i32::from_le_bytes(displacement) as isize
}

/// The displacement that leads from `from` to `to`.
fn distance(from: usize, to: usize) -> Option<[u8; 4]> {
    let distance = (to as isize).wrapping_sub(from as isize);
    Some(i32::try_from(distance).ok()?.to_le_bytes())
}

#[cfg(test)]
mod tests;
