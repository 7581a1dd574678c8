//! Numbers of bytes as users write them: `10G`, `512MiB`, `4096`.

/// Bytes of `text`: a whole number with an optional unit. `K`, `M`, `G`, `T`, `P` and `KiB` ... are
/// powers of 1024, `KB` ... powers of 1000.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let wrong = || format!("{text:?} is no size; write one like 10G or 512MiB");
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let factor = factor(unit.trim()).ok_or_else(wrong)?;
    number.checked_mul(factor).ok_or_else(|| format!("{text} is more than 64 bits of bytes"))
}

fn factor(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_lowercase();
    if unit.is_empty() || unit == "b" {
        return Some(1);
    }
    let (letter, rest) = unit.split_at_checked(1)?;
    let power = 1 + "kmgtp".find(letter)? as u32;
    match rest {
        "" | "ib" => Some(1024u64.pow(power)),
        "b" => Some(1000u64.pow(power)),
        _ => None,
    }
}

/// The size in the largest unit that leaves a number of at most four digits: `64 GiB`, `1.5 MiB`.
pub(crate) fn display(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut unit = 0;
    let mut scaled = bytes as f64;
    while scaled >= 1024.0 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && scaled.fract() > 0.05 && scaled < 100.0);
    format!("{scaled:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_understood() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("1K", 1024),
            ("512MiB", 512 << 20),
            ("10g", 10 << 30),
            ("2 T", 2 << 40),
            ("3kb", 3000),
            ("7B", 7),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "G", "-5", "1.5G", "10X", "10GG", "banana", "99999999999T", "1ß"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_short() {
        assert_eq!(display(0), "0 bytes");
        assert_eq!(display(64 << 30), "64 GiB");
        assert_eq!(display(3 << 19), "1.5 MiB");
    }
}
