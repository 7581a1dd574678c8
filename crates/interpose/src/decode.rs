//! Lengths of x86-64 instructions.
//!
//! Enough of the instruction set to find the boundaries of what compilers emit (Intel SDM volume 2,
//! appendix A; EVEX and VEX included). An unknown instruction ends the decoding. A test compares it
//! with `objdump` on the C library. iced-x86 needs an allocator, and more time to build its tables
//! than a short program runs.

/// The longest instruction.
pub(crate) const LENGTH_MAX: usize = 15;

/// The first opcode map of XOP (AMD). Below, the byte is the ModRM of `pop`.
const XOP_MAPS: u8 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Has the same effect at any address.
    Plain,
    /// Has a displacement relative to the next instruction, at this offset.
    Relative(u8),
    /// A conditional jump with a displacement of one byte, at this offset.
    ShortBranch(u8),
    /// A conditional jump with a displacement of four bytes, at this offset.
    NearBranch(u8),
    /// Leaves the straight line, or depends on its address in another way.
    Leaves,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub length: u8,
    pub kind: Kind,
}

/// The bytes that follow an opcode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operands {
    None,
    /// Immediate bytes.
    Imm(u8),
    /// An immediate of 2 or 4 bytes, by the operand size.
    ImmSize,
    /// `mov` to a register: 2, 4 or 8 bytes.
    ImmFull,
    /// An absolute address of 8 bytes.
    Address,
    ModRm,
    ModRmImm8,
    ModRmImmSize,
    /// `test` and its group: an immediate for the first two.
    Group3(u8),
    Branch8,
    Branch32,
    Jump(u8),
    Unknown,
}

#[derive(Default)]
struct Prefixes {
    length: usize,
    operand_16: bool,
    address_32: bool,
    wide: bool,
}

/// The first instruction of `code`.
pub(crate) fn instruction(code: &[u8]) -> Option<Instruction> {
    let code = &code[..code.len().min(LENGTH_MAX)];
    let prefixes = prefixes(code)?;
    let at = prefixes.length;
    match *code.get(at)? {
        0xc5 => vector(code, at + 2, 1),
        0xc4 => vector(code, at + 3, code.get(at + 1)? & 0x1f),
        0x62 => vector(code, at + 4, code.get(at + 1)? & 7),
        0x8f if code.get(at + 1)? & 0x1f >= XOP_MAPS => {
            vector(code, at + 3, code.get(at + 1)? & 0x1f)
        }
        0x0f => match *code.get(at + 1)? {
            0x38 => finish(code, at + 3, Operands::ModRm, &prefixes),
            0x3a => finish(code, at + 3, Operands::ModRmImm8, &prefixes),
            opcode => finish(code, at + 2, two_byte(opcode), &prefixes),
        },
        opcode => finish(code, at + 1, one_byte(opcode), &prefixes),
    }
}

fn prefixes(code: &[u8]) -> Option<Prefixes> {
    let mut found = Prefixes::default();
    loop {
        match *code.get(found.length)? {
            0x66 => found.operand_16 = true,
            0x67 => found.address_32 = true,
            0xf2 | 0xf3 | 0xf0 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65 => {}
            rex @ 0x40..=0x4f => {
                found.wide = rex & 8 != 0;
                found.length += 1;
                // A prefix behind REX makes it void. No compiler does this.
                let next = *code.get(found.length)?;
                let again = matches!(next, 0x40..=0x4f | 0x66 | 0x67 | 0xf0 | 0xf2 | 0xf3);
                return (!again).then_some(found);
            }
            _ => return Some(found),
        }
        found.length += 1;
    }
}

fn one_byte(opcode: u8) -> Operands {
    use Operands::*;
    match opcode {
        0x00..=0x3f => match opcode & 7 {
            0..=3 => ModRm,
            4 => Imm(1),
            5 => ImmSize,
            _ => Unknown,
        },
        0x50..=0x5f | 0x6c..=0x6f | 0x90..=0x99 | 0x9b..=0x9f | 0xa4..=0xa7 | 0xaa..=0xaf => None,
        0x63 | 0x84..=0x8f | 0xd0..=0xd3 | 0xd8..=0xdf | 0xfe => ModRm,
        0x68 | 0xa9 => ImmSize,
        0x69 | 0x81 | 0xc7 => ModRmImmSize,
        0x6a | 0xa8 | 0xb0..=0xb7 => Imm(1),
        0x6b | 0x80 | 0x83 | 0xc0 | 0xc1 | 0xc6 => ModRmImm8,
        0x70..=0x7f => Branch8,
        0xa0..=0xa3 => Address,
        0xb8..=0xbf => ImmFull,
        0xc8 => Imm(3),
        0xc3 | 0xcb | 0xcc | 0xcf | 0xf1 | 0xf4 => Jump(0),
        0xc2 | 0xca => Jump(2),
        0xcd | 0xe0..=0xe3 | 0xeb => Jump(1),
        0xe8 | 0xe9 => Jump(4),
        0xe4..=0xe7 => Imm(1),
        0xc9 | 0xd7 | 0xec..=0xef | 0xf5 | 0xf8..=0xfd => None,
        0xf6 | 0xf7 => Group3(opcode & 1),
        // Calls and jumps through memory, inc, dec and push.
        0xff => ModRm,
        _ => Unknown,
    }
}

fn two_byte(opcode: u8) -> Operands {
    use Operands::*;
    match opcode {
        // `syscall` and `sysenter` are the end of a straight line.
        0x05 | 0x34 | 0x07 | 0x35 | 0x0b => Jump(0),
        0x04 | 0x0a | 0x0c | 0x0e | 0x0f | 0x24..=0x27 | 0x36 | 0x39 | 0x3b..=0x3f | 0x78 => {
            Unknown
        }
        0x06 | 0x08 | 0x09 | 0x30..=0x33 | 0x37 | 0x77 => None,
        0x80..=0x8f => Branch32,
        0xa0..=0xa2 | 0xa8..=0xaa | 0xc8..=0xcf => None,
        0x70..=0x73 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6 => ModRmImm8,
        _ => ModRm,
    }
}

/// An instruction with a VEX, EVEX or XOP prefix, whose opcode is at `at`.
fn vector(code: &[u8], at: usize, map: u8) -> Option<Instruction> {
    let operands = match (map, *code.get(at)?) {
        (1, 0x77) => Operands::None,
        (1, 0x70..=0x73 | 0xc2 | 0xc4..=0xc6) | (3 | 8, _) => Operands::ModRmImm8,
        (1 | 2 | 5 | 6 | 9, _) => Operands::ModRm,
        (10, _) => Operands::ModRmImmSize,
        _ => Operands::Unknown,
    };
    finish(code, at + 1, operands, &Prefixes::default())
}

/// Adds the operands, which start at `at`.
fn finish(code: &[u8], at: usize, operands: Operands, prefixes: &Prefixes) -> Option<Instruction> {
    use Operands::*;
    let size = if prefixes.operand_16 { 2 } else { 4 };
    let mut end = at;
    let mut kind = Kind::Plain;
    let mut extension = 0;
    if matches!(operands, ModRm | ModRmImm8 | ModRmImmSize | Group3(_)) {
        let (length, relative) = mod_rm(&code[at.min(code.len())..])?;
        end += length;
        if relative {
            kind = Kind::Relative(at as u8 + 1);
        }
        extension = code[at] >> 3 & 7;
        // Calls and jumps through memory or registers, and what raises.
        if code[at - 1] == 0xff && prefixes.length + 1 == at && (2..=5).contains(&extension) {
            kind = Kind::Leaves;
        }
    }
    end += match operands {
        None | ModRm => 0,
        Imm(bytes) => usize::from(bytes),
        ImmFull if prefixes.wide => 8,
        ImmSize | ImmFull | ModRmImmSize => size,
        Address if prefixes.address_32 => return Option::None,
        // Processors of Intel and AMD disagree about the length.
        Branch32 | Jump(4) if prefixes.operand_16 => return Option::None,
        Address => {
            kind = Kind::Leaves;
            8
        }
        ModRmImm8 => 1,
        Group3(_) if extension > 1 => 0,
        Group3(0) => 1,
        Group3(_) => size,
        Branch8 => {
            kind = Kind::ShortBranch(at as u8);
            1
        }
        Branch32 => {
            kind = Kind::NearBranch(at as u8);
            4
        }
        Jump(bytes) => {
            kind = Kind::Leaves;
            usize::from(bytes)
        }
        Unknown => return Option::None,
    };
    (end <= code.len()).then_some(Instruction { length: end as u8, kind })
}

/// The length of a ModRM byte with what follows it, and whether it is relative to rip.
fn mod_rm(code: &[u8]) -> Option<(usize, bool)> {
    let first = *code.first()?;
    let (mode, register) = (first >> 6, first & 7);
    if mode == 3 {
        return Some((1, false));
    }
    let mut length = 1;
    let mut base = register;
    if register == 4 {
        base = code.get(1)? & 7;
        length += 1;
    }
    let displacement = match (mode, base) {
        (0, 5) => 4,
        (0, _) => 0,
        (1, _) => 1,
        _ => 4,
    };
    Some((length + displacement, mode == 0 && register == 5))
}

#[cfg(test)]
mod tests;
