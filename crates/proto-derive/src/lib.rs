//! The derive macros behind every Warren message (fos's stubgen, thesis section 3.2.2).
//!
//! * `#[derive(Wire)]` writes `encode` and a checking `decode` for structs and enums, and for enums
//!   a `name()` for counters and logs.
//! * `#[derive(Rpc)]` turns a request enum, whose variants name their reply with `#[reply(Type)]`,
//!   into a handler trait with a dispatch table (the server stub) and typed calls (the client
//!   stub).
//!
//! Invariants of the encoding: fields in the order of declaration, without padding or names; an
//! enum opens with one tag byte, counted from 1, so that zeroed memory never decodes. Adding a
//! variant anywhere but at the end changes the protocol.

mod case;
mod rpc;
mod wire;

use proc_macro::TokenStream;
use syn::{DeriveInput, Error, parse_macro_input};

/// Implements `warren_proto::Wire`; see the crate documentation for the encoding.
#[proc_macro_derive(Wire)]
pub fn derive_wire(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    wire::expand(&input).unwrap_or_else(Error::into_compile_error).into()
}

/// Generates `<Enum>Handler`, `<Enum>::dispatch`, `<Enum>Call` and one `<Enum>::call_*` for each
/// variant.
///
/// The enum must also be `Wire`. A handler method returns `Self::Answer<Reply>`, which the handler
/// chooses: the reply itself, a `Result`, or a promise of a later one; `answer` turns each into the
/// one type that `dispatch` gives back.
#[proc_macro_derive(Rpc, attributes(reply))]
pub fn derive_rpc(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    rpc::expand(&input).unwrap_or_else(Error::into_compile_error).into()
}
