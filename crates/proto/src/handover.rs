//! Names under which a program passes on a file that it has open without the kernel.
//!
//! A program with our library inside serves descriptors that its kernel does not know. When the
//! kernel must have the file, the program opens its name of this kind in a mount, in any directory:
//!
//! ```text
//! .warren-handover <1> CLIENT - INO - CAPABILITY    the file itself, also without a link
//!                      8 hex    16    16 digits
//! ```
//!
//! The name proves that the client has the inode open: the front asks the inode's cell
//! ([`Request::Claim`](crate::Request::Claim)). All names with the prefix are reserved: no file has
//! one, because cells refuse to create it.

use warren_base::{ClientId, Ino};

use crate::Capability;

/// All names of this kind begin with these bytes.
pub const HANDOVER_PREFIX: &[u8] = b".warren-handover\x01";

const CLIENT_DIGITS: usize = 8;
const INO_DIGITS: usize = 16;
const CAPABILITY_DIGITS: usize = 16;
const PROOF_LEN: usize = CLIENT_DIGITS + 1 + INO_DIGITS + 1 + CAPABILITY_DIGITS;

/// Length of these names in bytes.
pub const HANDOVER_NAME_MAX: usize = HANDOVER_PREFIX.len() + PROOF_LEN;

const _: () = assert!(HANDOVER_NAME_MAX <= warren_base::limits::NAME_MAX);

/// The request in a name of this kind: for the inode, which `client` has open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handover {
    pub client: ClientId,
    pub ino: Ino,
    pub capability: Capability,
}

impl Handover {
    /// Whether the name is reserved for this use. Some such names ask for nothing.
    #[inline]
    pub fn is_reserved(name: &[u8]) -> bool {
        name.starts_with(HANDOVER_PREFIX)
    }

    /// The name, in `out`.
    pub fn name<'a>(&self, out: &'a mut [u8; HANDOVER_NAME_MAX]) -> &'a [u8] {
        let (prefix, rest) = out.split_at_mut(HANDOVER_PREFIX.len());
        prefix.copy_from_slice(HANDOVER_PREFIX);
        let (client_digits, rest) = rest.split_at_mut(CLIENT_DIGITS);
        let (ino_digits, capability_digits) = rest.split_at_mut(1 + INO_DIGITS);
        put_hex(self.client.0.into(), client_digits);
        ino_digits[0] = b'-';
        put_hex(self.ino.0, &mut ino_digits[1..]);
        capability_digits[0] = b'-';
        put_hex(self.capability.0, &mut capability_digits[1..]);
        out
    }

    /// `None` for any name that [`Self::name`] does not make.
    pub fn parse(name: &[u8]) -> Option<Self> {
        let rest = name.strip_prefix(HANDOVER_PREFIX)?;
        if rest.len() != PROOF_LEN {
            return None;
        }
        let (client, rest) = rest.split_at(CLIENT_DIGITS);
        let (ino, rest) = rest.strip_prefix(b"-")?.split_at(INO_DIGITS);
        let client = ClientId(hex(client)? as u32);
        let capability = Capability(hex(rest.strip_prefix(b"-")?)?);
        Some(Self { client, ino: Ino(hex(ino)?), capability })
    }
}

/// Fills `digits` with the low digits of the number.
fn put_hex(number: u64, digits: &mut [u8]) {
    let mut left = number;
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(left & 0xf) as usize];
        left >>= 4;
    }
}

/// The number with these digits, at most 16. Upper-case letters are none.
fn hex(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u64::from(value))
    })
}

#[cfg(test)]
mod tests {
    use warren_base::{Rng, ShardId};

    use super::*;

    fn named(handover: Handover) -> Vec<u8> {
        handover.name(&mut [0; HANDOVER_NAME_MAX]).to_vec()
    }

    fn open(client: u32, ino: u64, capability: u64) -> Handover {
        let (client, ino) = (ClientId(client), Ino(ino));
        Handover { client, ino, capability: Capability(capability) }
    }

    #[test]
    fn a_name_is_as_documented() {
        let file = open(0x2a, Ino::new(ShardId(3), 7).0, 0xfedc_ba98_7654_3210);
        assert_eq!(named(file), b".warren-handover\x010000002a-0003000000000007-fedcba9876543210");
        assert_eq!(named(file).len(), HANDOVER_NAME_MAX);
    }

    #[test]
    fn a_name_is_parsed_as_it_was_made() {
        let mut rng = Rng::new(3);
        for _ in 0..1000 {
            let file = open(rng.next_u64() as u32, rng.next_u64(), rng.next_u64());
            let name = named(file);
            assert_eq!(Handover::parse(&name), Some(file));
            let mut other = name.clone();
            let at = rng.below(name.len() as u64) as usize;
            other[at] = rng.next_u64() as u8;
            let parsed = Handover::parse(&other);
            assert!(other == name || parsed != Some(file));
            assert!(parsed.is_none_or(|parsed| named(parsed) == other), "one name for each file");
        }
        for handover in [open(0, 0, 0), open(u32::MAX, u64::MAX, u64::MAX)] {
            assert_eq!(Handover::parse(&named(handover)), Some(handover));
        }
    }

    #[test]
    fn other_names_ask_for_nothing() {
        let name = named(open(1, 2, 3));
        let upper = name.to_ascii_uppercase();
        for wrong in [&name[..name.len() - 1], &[&name[..], b"0"].concat(), &upper, b"", b"."] {
            assert_eq!(Handover::parse(wrong), None);
        }
        for reserved in [&b".warren-handover\x01"[..], b".warren-handover\x01anything"] {
            assert!(Handover::is_reserved(reserved) && Handover::parse(reserved).is_none());
        }
        assert!(!Handover::is_reserved(b".warren-handover"));
    }
}
