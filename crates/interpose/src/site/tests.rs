use super::*;

const FUNCTION: usize = 0x7000_0000_1000;
const TRAMPOLINE: usize = 0x7000_0100_0000;
const ENTRY: usize = 0x7000_0100_0008;

fn site(code: &[u8]) -> Option<Site> {
    let call = code.windows(2).position(|bytes| bytes == SYSCALL)?;
    find(&code[..call + 2], call, |_, _| true)
}

fn code_of(site: &Site) -> Vec<u8> {
    let code = trampoline(site, FUNCTION, TRAMPOLINE, ENTRY).expect("in reach");
    code.bytes[..code.length].to_vec()
}

/// The address to which a displacement at `at` leads.
fn target(code: &[u8], at: usize) -> usize {
    (TRAMPOLINE + at + 4).wrapping_add_signed(near(code, at))
}

#[test]
fn the_number_is_loaded_just_before() {
    let code = [0x55, 0xb8, 1, 0, 0, 0, 0x0f, 0x05];
    let site = site(&code).expect("a site");
    assert_eq!((site.start, site.call, site.length()), (1, 6, 5));
    let code = code_of(&site);
    assert_eq!(code[..8], [0xb8, 1, 0, 0, 0, 0x48, 0x8d, 0x0d]);
    assert_eq!(target(&code, 8), FUNCTION + 8);
    assert_eq!(code[12..14], [0xff, 0x25]);
    assert_eq!(target(&code, 14), ENTRY);
}

/// `read` of glibc 2.36.
#[test]
fn what_lies_between_is_repeated() {
    let code = [0x80, 0x3d, 0x10, 0, 0, 0, 0, 0x74, 0x13, 0x31, 0xc0, 0x0f, 0x05];
    let site = site(&code).expect("a site");
    assert_eq!((site.start, site.length()), (0, 7));
    let code = code_of(&site);
    assert_eq!(code[..2], [0x80, 0x3d]);
    assert_eq!(target(&code, 2) + 1, FUNCTION + 7 + 0x10);
    assert_eq!(code[6..9], [0, 0x0f, 0x84]);
    assert_eq!(target(&code, 9), FUNCTION + 9 + 0x13);
    assert_eq!(code[13..15], [0x31, 0xc0]);
}

#[test]
fn what_cannot_be_patched_is_left() {
    // No instruction is long enough.
    assert!(site(&[0x31, 0xc0, 0x0f, 0x05]).is_none());
    // A call or a return stands between.
    assert!(site(&[0xb8, 1, 0, 0, 0, 0xc3, 0x31, 0xc0, 0x0f, 0x05]).is_none());
    assert!(site(&[0xe8, 1, 0, 0, 0, 0x31, 0xc0, 0x0f, 0x05]).is_none());
    // The bytes of `syscall` are part of another instruction.
    assert!(site(&[0x48, 0xb8, 1, 0, 0, 0, 0x0f, 0x05, 0, 0]).is_none());
    assert!(site(&[0x05, 0xb8, 1, 0, 0x0f, 0x05]).is_none());
    // The decoder does not know what stands before.
    assert!(site(&[0x06, 0xb8, 1, 0, 0, 0, 0x0f, 0x05]).is_none());
}

/// `41 b8 imm32` is `mov $imm,%r8d`: its tail must not be taken for `mov $imm,%eax`.
#[test]
fn a_prefix_belongs_to_its_instruction() {
    let site = site(&[0x90, 0x41, 0xb8, 9, 0, 0, 0, 0x0f, 0x05]).expect("a site");
    assert_eq!((site.start, site.length()), (1, 6));
}

#[test]
fn a_refused_place_moves_the_jump_to_an_earlier_instruction() {
    let code = [0xbf, 1, 0, 0, 0, 0xb8, 1, 0, 0, 0, 0x0f, 0x05];
    let site = find(&code, 10, |start, _| start != 5).expect("a site");
    assert_eq!(site.start, 0);
    assert_eq!(code_of(&site)[..10], code[..10]);
    assert!(find(&code, 10, |_, _| false).is_none());
}

/// A patched function decodes to the same boundaries.
#[test]
fn a_patched_instruction_hides_nothing() {
    let code = [0xe9, 1, 2, 3, 4, 0x90, 0x90, 0xb8, 1, 0, 0, 0, 0x0f, 0x05];
    assert_eq!(site(&code).expect("a site").start, 7);
    assert!(site(&[0xe9, 1, 2, 3, 4, 0x90, 0x90, 0x31, 0xc0, 0x0f, 0x05]).is_none());
}

#[test]
fn a_distance_has_a_limit() {
    assert_eq!(distance(10, 4), Some((-6_i32).to_le_bytes()));
    assert_eq!(distance(0, 1 << 31), None);
    assert_eq!(distance(1 << 31, 0), Some(i32::MIN.to_le_bytes()));
}

#[test]
fn a_call_is_found_at_every_place() {
    for length in 0..80 {
        let mut text = vec![0x0f; length];
        assert_eq!(find_call(&text), None);
        for at in 0..length.saturating_sub(1) {
            text[at + 1] = SYSCALL[1];
            assert_eq!(find_call(&text), Some(at), "of {length}");
            text[at + 1] = SYSCALL[0];
        }
    }
}
