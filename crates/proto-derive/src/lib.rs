//! The derive macro behind every Warren message (fos's stubgen, thesis section 3.2.2).
//!
//! `#[derive(Wire)]` writes `encode` and a checking `decode` for structs and enums. Requests are
//! dispatched by plain matches, which the compiler checks as well as a generated table.
//!
//! Invariants of the encoding: fields in the order of declaration, without padding or names; an
//! enum starts with one tag byte, counted from 1, so that zeroed memory never decodes. Adding a
//! variant anywhere but at the end changes the protocol.

mod wire;

use proc_macro::TokenStream;
use syn::{DeriveInput, Error, parse_macro_input};

/// Implements `warren_proto::Wire`; see the crate documentation for the encoding.
#[proc_macro_derive(Wire)]
pub fn derive_wire(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    wire::expand(&input).unwrap_or_else(Error::into_compile_error).into()
}
