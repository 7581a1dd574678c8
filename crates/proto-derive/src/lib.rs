//! The derive macro behind every Warren message
