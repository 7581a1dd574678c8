//! The time of day in lines.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Year, month, day, hour, minute and second (UTC) of seconds since 1970, by Howard Hinnant's
/// `civil_from_days`.
pub fn utc_fields(at: i64) -> (i64, [i64; 5]) {
    let (days, second) = (at.div_euclid(86_400), at.rem_euclid(86_400));
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let part = (5 * day_of_year + 2) / 153;
    let (day, month) = (day_of_year - (153 * part + 2) / 5 + 1, (part + 2) % 12 + 1);
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, [month, day, second / 3600, second / 60 % 60, second % 60])
}

/// Milliseconds since 1970 in the form of RFC 3339, in UTC.
pub(crate) fn rfc3339(ms: u64) -> String {
    let (year, [month, day, hour, minute, second]) = utc_fields((ms / 1000).cast_signed());
    let ms = ms % 1000;
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Now, in milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_868_799_007), "2000-02-29T23:59:59.007Z");
        assert_eq!(rfc3339(1_795_392_000_999), "2026-11-23T00:00:00.999Z");
    }
}
