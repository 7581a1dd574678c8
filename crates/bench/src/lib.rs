//! Workloads and comparisons
