//! `warren bench paper`: the experiments of papers, repeated as far as they can be on one machine.
//! A report has the paper's number beside each of ours.

pub mod hive;
