//! `#[derive(Rpc)]`: server and client stubs from one definition.
//!
//! For `enum Request { #[reply(Attr)] Lookup { dir: Ino, name: Name } }` it writes
//!
//! ```text
//! trait RequestHandler {
//!     type Context; type Answer<R>; type Outcome;
//!     fn lookup(&mut self, cx: &mut Context, dir: Ino, name: Name) -> Answer<Attr>;
//!     fn answer<R>(&mut self, cx: &mut Context, answer: Answer<R>) -> Outcome;
//! }
//! Request::dispatch(self, handler, cx) -> Outcome
//! Request::call_lookup(dir, name) -> RequestCall<Attr>
//! RequestCall { request, .. }; RequestCall::<Attr>::decode_reply(reader) -> Attr
//! ```

use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};
use syn::{Data, DeriveInput, Error, Member, Result, Type, Variant};

use crate::case::{snake, snake_ident};

/// One variant, taken apart.
struct Call {
    variant: Ident,
    method: Ident,
    constructor: Ident,
    reply: Type,
    members: Vec<Member>,
    arguments: Vec<Ident>,
    types: Vec<Type>,
    docs: Vec<syn::Attribute>,
}

pub(crate) fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let Data::Enum(body) = &input.data else {
        return Err(Error::new_spanned(&input.ident, "Rpc is derived for an enum of requests"));
    };
    if !input.generics.params.is_empty() {
        return Err(Error::new_spanned(
            &input.generics,
            "a request enum has no generic parameters",
        ));
    }
    let calls = body.variants.iter().map(Call::new).collect::<Result<Vec<Call>>>()?;
    let server = server_stub(input, &calls);
    let client = client_stub(input, &calls);
    Ok(quote! { #server #client })
}

impl Call {
    fn new(variant: &Variant) -> Result<Call> {
        let Some(reply) = variant.attrs.iter().find(|attribute| attribute.path().is_ident("reply"))
        else {
            return Err(Error::new_spanned(
                variant,
                "say what answers this request: #[reply(Type)]",
            ));
        };
        let named = |(at, field): (usize, &syn::Field)| match &field.ident {
            Some(ident) => (Member::Named(ident.clone()), ident.clone()),
            None => (Member::Unnamed(at.into()), format_ident!("argument_{at}")),
        };
        let (members, arguments) = variant.fields.iter().enumerate().map(named).unzip();
        Ok(Call {
            variant: variant.ident.clone(),
            method: snake_ident(&variant.ident, variant.ident.span()),
            constructor: format_ident!("call_{}", snake(&variant.ident)),
            reply: reply.parse_args()?,
            members,
            arguments,
            types: variant.fields.iter().map(|field| field.ty.clone()).collect(),
            docs: variant
                .attrs
                .iter()
                .filter(|attribute| attribute.path().is_ident("doc"))
                .cloned()
                .collect(),
        })
    }

    fn signature(&self) -> TokenStream {
        let Call { method, reply, arguments, types, docs, .. } = self;
        quote! {
            #( #docs )*
            fn #method(
                &mut self,
                cx: &mut Self::Context,
                #( #arguments: #types, )*
            ) -> Self::Answer<#reply>;
        }
    }

    fn dispatch_arm(&self) -> TokenStream {
        let Call { variant, method, members, .. } = self;
        // Bound to numbered names, so that no field can shadow the handler or its context.
        let bound: Vec<Ident> = (0..members.len()).map(|at| format_ident!("field_{at}")).collect();
        quote! {
            Self::#variant { #( #members: #bound, )* } => {
                let answer = handler.#method(cx #( , #bound )*);
                handler.answer(cx, answer)
            }
        }
    }

    fn constructor(&self, visibility: &syn::Visibility, call: &Ident) -> TokenStream {
        let Call { variant, constructor, reply, members, arguments, types, docs, .. } = self;
        quote! {
            #( #docs )*
            #[allow(dead_code, clippy::too_many_arguments)]
            #visibility fn #constructor(#( #arguments: #types ),*) -> #call<#reply> {
                let request = Self::#variant { #( #members: #arguments, )* };
                #call { request, reply: ::core::marker::PhantomData }
            }
        }
    }
}

fn server_stub(input: &DeriveInput, calls: &[Call]) -> TokenStream {
    let (ident, visibility) = (&input.ident, &input.vis);
    let handler = format_ident!("{ident}Handler");
    let documentation = format!(
        "Serves every `{ident}`; a new kind of request does not compile until it is served."
    );
    let signatures = calls.iter().map(Call::signature);
    let arms = calls.iter().map(Call::dispatch_arm);
    quote! {
        #[doc = #documentation]
        #[allow(dead_code, clippy::too_many_arguments)]
        #visibility trait #handler {
            /// What is known of one request beside its arguments: the sender, its epoch, the time.
            type Context;
            /// What a method gives back where the reply's type is `R`: the reply, a `Result`, or a
            /// later one.
            type Answer<R: ::warren_proto::Wire>;
            /// What `dispatch` gives back, the same for all requests.
            type Outcome;
            /// Brings a typed answer to the one type of `dispatch`, usually by encoding it.
            fn answer<R: ::warren_proto::Wire>(
                &mut self,
                cx: &mut Self::Context,
                answer: Self::Answer<R>,
            ) -> Self::Outcome;
            #( #signatures )*
        }
        #[automatically_derived]
        impl #ident {
            /// Hands the request to the method of its kind.
            #[allow(dead_code)]
            #visibility fn dispatch<H: #handler>(
                self,
                handler: &mut H,
                cx: &mut H::Context,
            ) -> H::Outcome {
                match self { #( #arms )* }
            }
        }
    }
}

fn client_stub(input: &DeriveInput, calls: &[Call]) -> TokenStream {
    let (ident, visibility) = (&input.ident, &input.vis);
    let call = format_ident!("{ident}Call");
    let documentation = format!(
        "A `{ident}` that remembers the type of its reply; it costs no more than the request."
    );
    let constructors = calls.iter().map(|one| one.constructor(visibility, &call));
    quote! {
        #[doc = #documentation]
        #[allow(dead_code)]
        #visibility struct #call<R> {
            #visibility request: #ident,
            reply: ::core::marker::PhantomData<fn() -> R>,
        }
        #[automatically_derived]
        impl<R: ::warren_proto::Wire> #call<R> {
            /// Decodes the reply to this request.
            #[allow(dead_code)]
            #visibility fn decode_reply(
                from: &mut ::warren_proto::Reader<'_>,
            ) -> ::core::result::Result<R, ::warren_proto::Malformed> {
                <R as ::warren_proto::Wire>::decode(from)
            }
        }
        #[automatically_derived]
        impl #ident {
            #( #constructors )*
        }
    }
}
