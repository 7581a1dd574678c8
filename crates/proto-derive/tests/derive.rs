//! The macros against a copy of the trait they name. `warren-proto` depends on this crate, so the
//! test stands in for it under the same name.

extern crate self as warren_proto;

use warren_proto_derive::{Rpc, Wire};

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

#[test]
fn variants_have_names_for_counters() {
    const UNIT: &str = Shape::<u8>::Unit.name();
    assert_eq!(UNIT, "unit");
    assert_eq!(Shape::TwoFields(1, 1u8).name(), "two_fields");
}

#[derive(Debug, PartialEq, Eq, Wire, Rpc)]
enum Request {
    /// Adds two numbers.
    #[reply(u8)]
    Add { left: u8, cx: u8 },
    #[reply(Named)]
    Move(u8),
    #[reply(Nothing)]
    Ping,
}

struct Server {
    served: Vec<&'static str>,
}

impl RequestHandler for Server {
    type Context = u8;
    type Answer<R: Wire> = Result<R, u8>;
    type Outcome = Vec<u8>;

    fn answer<R: Wire>(&mut self, _: &mut u8, answer: Result<R, u8>) -> Vec<u8> {
        answer.map_or_else(|code| vec![0xee, code], |reply| bytes_of(&reply))
    }
    fn add(&mut self, context: &mut u8, left: u8, right: u8) -> Result<u8, u8> {
        self.served.push("add");
        left.checked_add(right).ok_or(*context)
    }
    fn r#move(&mut self, _: &mut u8, by: u8) -> Result<Named, u8> {
        self.served.push("move");
        Ok(Named { first: by, second: by })
    }
    fn ping(&mut self, _: &mut u8) -> Result<Nothing, u8> {
        self.served.push("ping");
        Ok(Nothing)
    }
}

/// What a transport does: the request as bytes one way, the reply as bytes back.
fn exchange<R: Wire>(server: &mut Server, call: RequestCall<R>) -> Result<R, Malformed> {
    let request: Request = decoded(&bytes_of(&call.request))?;
    let reply = request.dispatch(server, &mut 5);
    RequestCall::<R>::decode_reply(&mut Reader(&reply))
}

#[test]
fn stubs_meet_across_the_wire() {
    let mut server = Server { served: Vec::new() };
    assert_eq!(exchange(&mut server, Request::call_add(2, 3)), Ok(5));
    assert_eq!(exchange(&mut server, Request::call_move(4)), Ok(Named { first: 4, second: 4 }));
    assert_eq!(exchange(&mut server, Request::call_ping()), Ok(Nothing));
    assert_eq!(server.served, ["add", "move", "ping"]);
    assert_eq!(Request::Add { left: 255, cx: 1 }.dispatch(&mut server, &mut 5), [0xee, 5]);
}
