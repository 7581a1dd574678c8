//! `#[derive(Wire)]`: fields in order, enums behind one tag byte.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{
    Data, DataEnum, DeriveInput, Error, Fields, Generics, Ident, Index, Member, Result, parse_quote,
};

/// Tags are one byte and start at 1.
const VARIANTS_MAX: usize = u8::MAX as usize;

pub(crate) fn expand(input: &DeriveInput) -> Result<TokenStream> {
    match &input.data {
        Data::Struct(body) => {
            Ok(implement(input, encode_struct(&body.fields), decode_struct(&body.fields)))
        }
        Data::Enum(body) => expand_enum(input, body),
        Data::Union(_) => Err(Error::new_spanned(&input.ident, "a union has no checked encoding")),
    }
}

fn implement(input: &DeriveInput, encode: TokenStream, decode: TokenStream) -> TokenStream {
    let ident = &input.ident;
    let bounded = with_wire_bounds(&input.generics);
    let (_, type_generics, _) = input.generics.split_for_impl();
    let (impl_generics, _, where_clause) = bounded.split_for_impl();
    quote! {
        #[automatically_derived]
        impl #impl_generics ::warren_proto::Wire for #ident #type_generics #where_clause {
            #[allow(unused_variables, clippy::ptr_arg)]
            fn encode(&self, out: &mut ::warren_proto::derive::Vec<u8>) {
                #encode
            }
            #[allow(unused_variables)]
            fn decode(
                from: &mut ::warren_proto::Reader<'_>,
            ) -> ::core::result::Result<Self, ::warren_proto::Malformed> {
                #decode
            }
        }
    }
}

fn with_wire_bounds(generics: &Generics) -> Generics {
    let mut bounded = generics.clone();
    for parameter in bounded.type_params_mut() {
        parameter.bounds.push(parse_quote!(::warren_proto::Wire));
    }
    bounded
}

/// Each field's name or number, in order.
fn members(fields: &Fields) -> Vec<Member> {
    let numbered = |(at, field): (usize, &syn::Field)| match &field.ident {
        Some(ident) => Member::Named(ident.clone()),
        None => Member::Unnamed(Index::from(at)),
    };
    fields.iter().enumerate().map(numbered).collect()
}

fn encode_struct(fields: &Fields) -> TokenStream {
    let members = members(fields);
    quote! { #( ::warren_proto::Wire::encode(&self.#members, out); )* }
}

fn decode_struct(fields: &Fields) -> TokenStream {
    let built = decode_members(fields);
    quote! { ::core::result::Result::Ok(Self #built) }
}

/// `{ a: decode, 1: decode }`: the brace form with numbers serves tuple and unit shapes too, and
/// expressions in it are evaluated in the order written, which is the order on the wire.
fn decode_members(fields: &Fields) -> TokenStream {
    let members = members(fields);
    let types = fields.iter().map(|field| &field.ty);
    quote! { { #( #members: <#types as ::warren_proto::Wire>::decode(from)?, )* } }
}

fn expand_enum(input: &DeriveInput, body: &DataEnum) -> Result<TokenStream> {
    if body.variants.is_empty() || body.variants.len() > VARIANTS_MAX {
        return Err(Error::new_spanned(&input.ident, "an enum on the wire has 1 to 255 variants"));
    }
    Ok(implement(input, encode_enum(body), decode_enum(&input.ident, body)))
}

fn encode_enum(body: &DataEnum) -> TokenStream {
    let arms = body.variants.iter().zip(1u8..=u8::MAX).map(|(variant, tag)| {
        let ident = &variant.ident;
        let members = members(&variant.fields);
        let bindings: Vec<Ident> =
            (0..members.len()).map(|at| format_ident!("field_{at}")).collect();
        quote! {
            Self::#ident { #( #members: #bindings, )* } => {
                out.push(#tag);
                #( ::warren_proto::Wire::encode(#bindings, out); )*
            }
        }
    });
    quote! { match self { #( #arms )* } }
}

fn decode_enum(ident: &Ident, body: &DataEnum) -> TokenStream {
    let arms = body.variants.iter().zip(1u8..=u8::MAX).map(|(variant, tag)| {
        let variant_ident = &variant.ident;
        let built = decode_members(&variant.fields);
        quote! { #tag => ::core::result::Result::Ok(Self::#variant_ident #built), }
    });
    quote! {
        match <u8 as ::warren_proto::Wire>::decode(from)? {
            #( #arms )*
            tag => ::core::result::Result::Err(
                ::warren_proto::Malformed::tag(stringify!(#ident), tag)
            ),
        }
    }
}
