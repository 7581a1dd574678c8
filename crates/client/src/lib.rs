//! Routing, caches and calls of a file-system client
