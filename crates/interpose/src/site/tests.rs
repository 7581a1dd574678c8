use super::*;

#[test]
fn placeholder() {
    assert_eq!(distance(10, 4), Some((-6_i32).to_le_bytes()));
}
