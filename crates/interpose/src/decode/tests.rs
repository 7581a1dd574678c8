use super::*;

fn length(code: &[u8]) -> usize {
    instruction(code).map_or(0, |it| usize::from(it.length))
}

#[test]
fn common_instructions() {
    assert_eq!(length(&[0xb8, 1, 0, 0, 0, 0x0f, 0x05]), 5);
}
