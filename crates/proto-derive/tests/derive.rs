//! The macro with a copy of the trait that it names. `warren-proto` depends on this crate, so the
//! test replaces it under the same name.

extern crate self as warren_proto;

use warren_proto_derive::Wire;

pub mod derive {
    pub use std::vec::Vec;
}

pub trait Wire: Sized {
    fn encode(&self, out: &mut Vec<u8>);
    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed>;
}

pub struct Reader<'a>(&'a [u8]);

#[derive(Debug, PartialEq, Eq)]
pub enum Malformed {
    Short,
    Tag(&'static str, u8),
}

impl Malformed {
    pub fn tag(of: &'static str, tag: u8) -> Malformed {
        Malformed::Tag(of, tag)
    }
}

impl Wire for u8 {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(*self);
    }
    fn decode(from: &mut Reader<'_>) -> Result<u8, Malformed> {
        let (first, rest) = from.0.split_first().ok_or(Malformed::Short)?;
        from.0 = rest;
        Ok(*first)
    }
}

#[derive(Debug, PartialEq, Eq, Clone, Wire)]
struct Named {
    first: u8,
    second: u8,
}

#[derive(Debug, PartialEq, Eq, Clone, Wire)]
struct Pair<T, U = u8>(T, U)
where
    T: Clone;

#[derive(Debug, PartialEq, Eq, Clone, Wire)]
struct Nothing;

#[derive(Debug, PartialEq, Eq, Clone, Wire)]
enum Shape<T: Clone> {
    Unit,
    TwoFields(u8, T),
    Move { out: u8, from: Named, tag: Pair<T> },
}

fn bytes_of<T: Wire>(value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut out);
    out
}

fn decoded<T: Wire>(bytes: &[u8]) -> Result<T, Malformed> {
    let mut reader = Reader(bytes);
    let value = T::decode(&mut reader)?;
    assert!(reader.0.is_empty(), "decode left bytes behind");
    Ok(value)
}

#[test]
fn fields_go_in_order_behind_tags_from_one() {
    let full = Shape::Move { out: 9, from: Named { first: 1, second: 2 }, tag: Pair(3, 4) };
    assert_eq!(bytes_of(&full), [3, 9, 1, 2, 3, 4]);
    assert_eq!(bytes_of(&Shape::TwoFields(7u8, 8u8)), [2, 7, 8]);
    assert_eq!(bytes_of(&Shape::<u8>::Unit), [1]);
    assert!(bytes_of(&Nothing).is_empty());
    for shape in [full, Shape::TwoFields(7, 8), Shape::Unit] {
        assert_eq!(decoded(&bytes_of(&shape)), Ok(shape));
    }
    assert_eq!(decoded(&[]), Ok(Nothing));
}

#[test]
fn unknown_tags_and_short_input_are_errors() {
    assert_eq!(decoded::<Shape<u8>>(&[0]), Err(Malformed::Tag("Shape", 0)));
    assert_eq!(decoded::<Shape<u8>>(&[4]), Err(Malformed::Tag("Shape", 4)));
    assert_eq!(decoded::<Shape<u8>>(&[2, 7]), Err(Malformed::Short));
    assert_eq!(decoded::<Named>(&[1]), Err(Malformed::Short));
}
