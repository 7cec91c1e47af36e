//! Finds keys that are made from the time of day.

use uuid::Uuid;

/// Whether the key is a point in time, or holds one.
pub(super) fn is_or_holds_a_moment(key: &str) -> bool {
    if Uuid::parse_str(key).is_ok() {
        return false;
    }
    let whole = key.split_once('.').map_or(key, |(whole, _)| whole);
    is_number(key) && (is_epoch(whole, true) || is_compact_time(whole))
        // Within a longer key, ten digits may well be an order number.
        || segments(key).any(|segment| is_epoch(segment, false) || is_compact_time(segment))
        || holds_date_and_time(key.as_bytes())
}

/// Seconds, milli-, micro- or nanoseconds since 1970, of the years 2015 to 2039.
fn is_epoch(digits: &str, seconds_too: bool) -> bool {
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return false;
    }
    let seconds = match digits.len() {
        10 if seconds_too => digits.parse(),
        13 | 16 | 19 => digits[..10].parse(),
        _ => return false,
    };
    matches!(seconds, Ok(1_420_070_400_u64..=2_208_988_799))
}

/// `20260131101500`, with or without a `T` after the day and a `Z` or fraction at the end.
fn is_compact_time(text: &str) -> bool {
    let text = text.strip_suffix(['Z', 'z']).unwrap_or(text);
    let digits: String = match text.split_once(['T', 't']) {
        Some((day, time)) if day.len() == 8 => [day, time].concat(),
        Some(_) => return false,
        None => text.to_owned(),
    };
    // With milliseconds it has 17 digits.
    if !matches!(digits.len(), 14 | 17) || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return false;
    }
    is_day(&digits[..4], &digits[4..6], &digits[6..8])
        && within(&digits[8..10], 0..=23)
        && within(&digits[10..12], 0..=59)
        && within(&digits[12..14], 0..=60)
}

/// Anywhere: `2026-01-31T10:15`, with a space or `_` for the `T`, and `-`, `.` or `_` for `:`.
/// A day alone passes: `close:merchant-7:2026-01-31` is a good name.
fn holds_date_and_time(key: &[u8]) -> bool {
    key.windows(16).any(|w| {
        let Ok(text) = std::str::from_utf8(w) else {
            return false;
        };
        w.is_ascii()
            && w[4] == b'-'
            && w[7] == b'-'
            && matches!(w[10], b'T' | b't' | b' ' | b'_')
            && matches!(w[13], b':' | b'-' | b'.' | b'_')
            && is_day(&text[..4], &text[5..7], &text[8..10])
            && within(&text[11..13], 0..=23)
            && within(&text[14..16], 0..=59)
    })
}

fn is_day(year: &str, month: &str, day: &str) -> bool {
    within(year, 2015..=2039) && within(month, 1..=12) && within(day, 1..=31)
}

fn within(digits: &str, range: std::ops::RangeInclusive<u32>) -> bool {
    digits.bytes().all(|b| b.is_ascii_digit()) && digits.parse().is_ok_and(|n| range.contains(&n))
}

pub(super) fn segments(key: &str) -> impl Iterator<Item = &str> {
    key.split(|c: char| !c.is_alphanumeric())
        .filter(|segment| !segment.is_empty())
}

pub(super) fn is_number(key: &str) -> bool {
    let digits = key.strip_prefix(['-', '+']).unwrap_or(key);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    [whole, fraction]
        .iter()
        .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
}
