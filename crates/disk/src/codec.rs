//! Little-endian fields, read in order with every bound checked, and written in order.

/// Reads fields from the front of a slice; `None` once it is exhausted.
pub(crate) struct Take<'a>(&'a [u8]);

macro_rules! fields {
    ($($name:ident: $raw:ty;)*) => {
        impl Take<'_> {
            $(pub(crate) fn $name(&mut self) -> Option<$raw> {
                self.array().map(<$raw>::from_le_bytes)
            })*
        }

        /// Appends fields to the bytes of a structure.
        pub(crate) trait Put {
            $(fn $name(&mut self, value: $raw);)*
        }

        impl Put for Vec<u8> {
            $(fn $name(&mut self, value: $raw) {
                self.extend_from_slice(&value.to_le_bytes());
            })*
        }
    };
}

fields! {
    u8: u8;
    u16: u16;
    u32: u32;
    u64: u64;
    i64: i64;
}

impl<'a> Take<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(front)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (front, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*front)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The checksum of a structure whose crc field ends at `covered_from`: it covers everything behind.
pub(crate) fn crc_behind(bytes: &[u8], covered_from: usize) -> u32 {
    crc32c::crc32c(&bytes[covered_from..])
}
