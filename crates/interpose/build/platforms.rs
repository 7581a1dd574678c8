//! The directories beside the library that the loader chooses by a program's platform
//! (`runtime/src/interposer.rs`): links to the library, and for programs of 32 bits a stub.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

const NAME: &str = "libwarren_interpose.so";
const OF_64_BITS: [&str; 4] = ["x86_64", "haswell", "xeon_phi", "$PLATFORM"];
const OF_32_BITS: [&str; 4] = ["i386", "i486", "i586", "i686"];

/// Makes the directories in that of the library.
pub(crate) fn make(directory: &Path) -> io::Result<()> {
    for platform in OF_64_BITS {
        let link = place(directory, platform)?;
        symlink(Path::new("..").join(NAME), link)?;
    }
    OF_32_BITS.iter().try_for_each(|platform| fs::write(place(directory, platform)?, stub()))
}

/// The path of the library in this directory, which is free afterwards.
fn place(directory: &Path, platform: &str) -> io::Result<std::path::PathBuf> {
    let directory = directory.join(platform);
    fs::create_dir_all(&directory)?;
    let path = directory.join(NAME);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(path),
    }
}

/// Bytes of the ELF header, and of each program header, in 32 bits.
const HEADER: u32 = 52;
const PROGRAM_HEADER: u32 = 32;
const PROGRAM_HEADERS: u32 = 3;
/// The places of the parts behind them: a hash table, the symbol that every table begins with, the
/// table of strings, and the dynamic section.
const HASH: u32 = HEADER + PROGRAM_HEADERS * PROGRAM_HEADER;
const SYMBOLS: u32 = HASH + 4 * 4;
const STRINGS: u32 = SYMBOLS + 16;
const STRINGS_LEN: u32 = 4;
const DYNAMIC: u32 = STRINGS + STRINGS_LEN;
/// Entries of the dynamic section: a tag and a value each.
const ENTRIES: [[u32; 2]; 6] = [
    [4, HASH],         // DT_HASH
    [5, STRINGS],      // DT_STRTAB
    [6, SYMBOLS],      // DT_SYMTAB
    [10, STRINGS_LEN], // DT_STRSZ
    [11, 16],          // DT_SYMENT
    [0, 0],            // DT_NULL
];
const DYNAMIC_LEN: u32 = 8 * ENTRIES.len() as u32;
const LEN: u32 = DYNAMIC + DYNAMIC_LEN;

/// A shared object for i386 (System V ABI, Intel386 supplement) without code, data and symbols.
fn stub() -> Vec<u8> {
    const IDENT: [u8; 16] = *b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0";
    const DYN_OF_386: u32 = 3 | 3 << 16;
    let mut out = IDENT.to_vec();
    let mut words = |words: &[u32]| words.iter().for_each(|it| out.extend(it.to_le_bytes()));
    // Type and machine, version, entry, program headers, sections, flags.
    words(&[DYN_OF_386, 1, 0, HEADER, 0, 0]);
    // Sizes of the header and of a program header, their number, no sections: 16 bits each.
    words(&[HEADER | PROGRAM_HEADER << 16, PROGRAM_HEADERS, 0]);
    // Program headers: type, offset, address, address, bytes in the file and in memory, flags,
    // alignment. The loader writes addresses into the dynamic section.
    const READ_WRITE: u32 = 6;
    words(&[1, 0, 0, 0, LEN, LEN, READ_WRITE, 4096]);
    words(&[2, DYNAMIC, DYNAMIC, DYNAMIC, DYNAMIC_LEN, DYNAMIC_LEN, READ_WRITE, 4]);
    // Without this one the loader makes the program's stack executable.
    words(&[0x6474_e551, 0, 0, 0, 0, 0, READ_WRITE, 16]);
    // One bucket and one chain, both with the symbol that no name leads to, and this.
    words(&[1, 1, 0, 0, 0, 0, 0, 0]);
    // No string but the empty one.
    words(&[0]);
    ENTRIES.iter().for_each(|entry| words(entry));
    assert_eq!(out.len(), LEN as usize);
    out
}
