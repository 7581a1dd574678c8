//! Finds the bit whose flip makes a checksum right.

/// The polynomial of crc32c, its bits in the order of the checksum's.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The bit to flip so that the bytes from `covered` on have this checksum. A checksum is linear:
/// the change caused by one flipped bit depends only on the bit's distance from the end. Within a
/// block no two bits cause the same change, so at most one bit fits.
pub(crate) fn flipped_bit(bytes: &[u8], covered: usize, checksum: u32) -> Option<usize> {
    let change = crc32c::crc32c(&bytes[covered..]) ^ checksum;
    let mut changes: [u32; 8] = std::array::from_fn(|bit| 1 << bit);
    for at in (covered..bytes.len()).rev() {
        changes = changes.map(behind_a_byte);
        if let Some(bit) = changes.iter().position(|of_bit| *of_bit == change) {
            return Some(8 * at + bit);
        }
    }
    None
}

/// The change of the checksum after one more byte.
fn behind_a_byte(change: u32) -> u32 {
    (0..8).fold(change, |at, _| (at >> 1) ^ if at & 1 == 1 { POLYNOMIAL } else { 0 })
}
