//! Times of batches. One number is a batch's time divided by its calls, in nanoseconds.

use std::fmt;
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// The figures of many batches, in nanoseconds a call.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Figures {
    pub median_ns: f64,
    /// The 99th percentile of the batches (not of single calls).
    pub p99_ns: f64,
}

/// The middle of many batches and how far they differ, in nanoseconds a call.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Spread {
    pub median_ns: f64,
    pub p25_ns: f64,
    pub p75_ns: f64,
}

/// Nanoseconds a call of one batch of `calls`.
pub(crate) fn time_batch<E>(
    calls: u32,
    mut call: impl FnMut(u32) -> Result<(), E>,
) -> Result<f64, E> {
    let start = Instant::now();
    for at in 0..calls {
        call(at)?;
    }
    Ok(start.elapsed().as_nanos() as f64 / f64::from(calls))
}

/// The value that the share `share` of the values does not exceed (nearest rank). Not of nothing.
pub(crate) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

impl Figures {
    pub fn of(batches: &[f64]) -> Self {
        Self { median_ns: median(batches), p99_ns: quantile(batches, 0.99) }
    }
}

impl Spread {
    pub fn of(batches: &[f64]) -> Self {
        let at = |share| quantile(batches, share);
        Self { median_ns: at(0.5), p25_ns: at(0.25), p75_ns: at(0.75) }
    }
}

/// The quartiles.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0}-{:.0}", self.p25_ns, self.p75_ns)
    }
}

/// `None` of nothing.
pub(crate) fn geometric_mean(values: &[f64]) -> Option<f64> {
    let sum: f64 = values.iter().map(|value| value.ln()).sum();
    if values.is_empty() { None } else { Some((sum / values.len() as f64).exp()) }
}

/// The median of `ours[i] / theirs[i]`: batches that were neighbours in time.
pub(crate) fn median_ratio(ours: &[f64], theirs: &[f64]) -> f64 {
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
    median(&ratios)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_seen() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!((median(&values), quantile(&values, 0.99)), (50.0, 99.0));
        assert_eq!((quantile(&values, 0.0), quantile(&values, 1.0)), (1.0, 100.0));
        assert_eq!(Figures::of(&[7.0]), Figures { median_ns: 7.0, p99_ns: 7.0 });
    }

    #[test]
    fn spreads_are_quartiles() {
        let values: Vec<f64> = (1..=8).map(f64::from).collect();
        let spread = Spread::of(&values);
        assert_eq!((spread.p25_ns, spread.median_ns, spread.p75_ns), (2.0, 4.0, 6.0));
    }

    #[test]
    fn twice_as_fast_and_twice_as_slow_are_equal_in_the_mean() {
        let mean = geometric_mean(&[0.5, 2.0, 8.0]).expect("a mean");
        assert!((mean - 2.0).abs() < 1e-9, "{mean}");
        assert_eq!(geometric_mean(&[]), None);
    }

    /// A machine that slows down for some rounds moves the medians but not the ratio.
    #[test]
    fn neighbours_are_compared() {
        let ours = [10.0, 20.0, 40.0];
        let theirs = [20.0, 40.0, 80.0];
        assert_eq!(median_ratio(&ours, &theirs), 0.5);
    }
}
