use std::process::Command;

use super::*;

fn length(code: &[u8]) -> usize {
    instruction(code).map_or(0, |it| usize::from(it.length))
}

fn kind(code: &[u8]) -> Kind {
    instruction(code).expect("known").kind
}

#[test]
fn common_instructions() {
    assert_eq!(length(&[0xb8, 1, 0, 0, 0, 0x0f, 0x05]), 5);
    assert_eq!(length(&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0]), 7);
    assert_eq!(length(&[0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8]), 10);
    assert_eq!(length(&[0x66, 0xb8, 1, 2]), 4);
    // A mov whose displacement looks like `mov $272,%eax`.
    assert_eq!(length(&[0x8b, 0xb8, 0x10, 1, 0, 0]), 6);
    assert_eq!(length(&[0xf6, 0x47, 1, 2]), 4);
    assert_eq!(length(&[0xf7, 0xd8]), 2);
    assert_eq!(length(&[0x62, 0xf1, 0x7c, 0x48, 0x10, 0x44, 0x24, 1]), 8);
    assert_eq!(length(&[0xc5, 0xf8, 0x77]), 3);
}

#[test]
fn kinds() {
    assert_eq!(kind(&[0x80, 0x3d, 1, 2, 3, 4, 0]), Kind::Relative(2));
    assert_eq!(kind(&[0x74, 0x13]), Kind::ShortBranch(1));
    assert_eq!(kind(&[0x0f, 0x84, 1, 2, 3, 4]), Kind::NearBranch(2));
    assert_eq!(kind(&[0x31, 0xc0]), Kind::Plain);
    for leaves in
        [&[0x0f, 0x05][..], &[0xc3], &[0xe8, 1, 2, 3, 4], &[0xff, 0xd0], &[0xff, 0x25, 1, 2, 3, 4]]
    {
        assert_eq!(kind(leaves), Kind::Leaves, "{leaves:x?}");
    }
    assert_eq!(kind(&[0xff, 0xc0]), Kind::Plain);
}

#[test]
fn what_is_cut_off_or_unknown_is_no_instruction() {
    for code in [&[][..], &[0x48], &[0xb8, 1, 2], &[0x0f], &[0x8b], &[0x8b, 0x04], &[0x06], &[0xc4]]
    {
        assert_eq!(instruction(code), None, "{code:x?}");
    }
}

/// Every sequence of bytes is decoded or refused, and nothing is read behind its end.
#[test]
fn no_bytes_are_too_strange() {
    let mut state = 1_u64;
    for _ in 0..1_000_000 {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let bytes = (u128::from(state) * u128::from(state | 1)).to_le_bytes();
        let code = &bytes[..(state >> 60) as usize];
        if let Some(found) = instruction(code) {
            assert!((1..=code.len()).contains(&usize::from(found.length)));
        }
    }
}

/// Compares every length with `objdump` in the libraries that are patched and in large ones.
#[test]
fn lengths_are_those_of_objdump() {
    let libraries = [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/lib64/ld-linux-x86-64.so.2",
        "/lib/x86_64-linux-gnu/libm.so.6",
        "/lib/x86_64-linux-gnu/libstdc++.so.6",
    ];
    for library in libraries.into_iter().filter(|library| std::fs::exists(library).unwrap_or(false))
    {
        let Ok(output) = Command::new("objdump").args(["-dw", library]).output() else {
            eprintln!("skipped: no objdump");
            return;
        };
        let text = String::from_utf8_lossy(&output.stdout);
        let (count, wrong) = compare(&text);
        eprintln!("{library}: {count} instructions, {} wrong", wrong.len());
        assert!(wrong.is_empty(), "{:#?}", &wrong[..wrong.len().min(20)]);
        assert!(count > 0);
    }
}

fn compare(text: &str) -> (usize, Vec<&str>) {
    let mut count = 0;
    let mut wrong = Vec::new();
    for line in text.lines() {
        let mut columns = line.split('\t');
        let (Some(_), Some(bytes), Some(name)) = (columns.next(), columns.next(), columns.next())
        else {
            continue;
        };
        // objdump takes `wait` (9b) for a part of the next instruction.
        let joined =
            bytes.starts_with("9b ") || name.starts_with("rex") || name.starts_with("data16");
        if name.contains("(bad)") || joined {
            continue;
        }
        let bytes: Vec<u8> =
            bytes.split_whitespace().filter_map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
        // The decoder sees what follows, as it does in a program.
        let longer = [&bytes[..], &[0x90; LENGTH_MAX]].concat();
        count += 1;
        if length(&longer) != bytes.len() {
            wrong.push(line);
        }
    }
    (count, wrong)
}
