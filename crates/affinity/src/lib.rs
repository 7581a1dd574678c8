//! The hierarchical affinity scheduler
