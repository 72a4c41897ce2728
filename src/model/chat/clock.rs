//! `strftime_now` of chat templates, using jiff.

use jiff::Timestamp;
use jiff::fmt::strtime::{BrokenDownTime, Config, PosixCustom};
use jiff::tz::TimeZone;

/// The current time in Python's `format`. The time is UTC, since no time zone database is built in: around midnight the
/// date may differ from the local date that transformers writes.
pub(super) fn strftime_now(format: &str) -> String {
    strftime(format, Timestamp::now())
}

fn strftime(format: &str, now: Timestamp) -> String {
    // Python's now() carries no zone, and %f has microseconds
    let format = format.replace("%z", "").replace("%Z", "").replace("%f", "%6f");
    let config = Config::new().custom(PosixCustom::new()).lenient(true); // lenient: never an error
    let now = BrokenDownTime::from(&now.to_zoned(TimeZone::UTC));
    now.to_string_with_config(&config, &format).unwrap_or(format)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(format: &str, seconds: i64, micros: i32) -> String {
        strftime(format, Timestamp::new(seconds, 1000 * micros).unwrap())
    }

    /// Python's `datetime.fromtimestamp(t, timezone.utc).replace(tzinfo=None).strftime(...)`.
    #[test]
    fn dates_are_pythons() {
        let all = "%Y-%m-%d %H:%M:%S %j %a %A %b %B %U %W %V %G %u %w %I %p %y %e|%-d|%-m|%-H|%-I|%-j|%C";
        for (seconds, expected) in CASES {
            assert_eq!(at(all, seconds, 0), expected, "{seconds}");
        }
        assert_eq!(at("%d %b %Y", 1_721_952_000, 0), "26 Jul 2024");
        assert_eq!(at("%F %T %D %R%%%n%c", 0, 7), "1970-01-01 00:00:00 01/01/70 00:00%\nThu Jan  1 00:00:00 1970");
        assert_eq!(at("%f", 0, 7), "000007");
        assert_eq!(at("%é %", 0, 0), "%é %");
    }

    /// jiff writes `%y` of 1969 to 2068 only.
    const CASES: [(i64, &str); 10] = [
        (0, "1970-01-01 00:00:00 001 Thu Thursday Jan January 00 00 01 1970 4 4 12 AM 70  1|1|1|0|12|1|19"),
        (951782399, "2000-02-28 23:59:59 059 Mon Monday Feb February 09 09 09 2000 1 1 11 PM 00 28|28|2|23|11|59|20"),
        (951782400, "2000-02-29 00:00:00 060 Tue Tuesday Feb February 09 09 09 2000 2 2 12 AM 00 29|29|2|0|12|60|20"),
        (1709164800, "2024-02-29 00:00:00 060 Thu Thursday Feb February 08 09 09 2024 4 4 12 AM 24 29|29|2|0|12|60|20"),
        (
            1230767999,
            "2008-12-31 23:59:59 366 Wed Wednesday Dec December 52 52 01 2009 3 3 11 PM 08 31|31|12|23|11|366|20",
        ),
        (
            1609459199,
            "2020-12-31 23:59:59 366 Thu Thursday Dec December 52 52 53 2020 4 4 11 PM 20 31|31|12|23|11|366|20",
        ),
        (1609459200, "2021-01-01 00:00:00 001 Fri Friday Jan January 00 00 53 2020 5 5 12 AM 21  1|1|1|0|12|1|20"),
        (1721999999, "2024-07-26 13:19:59 208 Fri Friday Jul July 29 30 30 2024 5 5 01 PM 24 26|26|7|13|1|208|20"),
        (
            1735603200,
            "2024-12-31 00:00:00 366 Tue Tuesday Dec December 52 53 01 2025 2 2 12 AM 24 31|31|12|0|12|366|20",
        ),
        (-1, "1969-12-31 23:59:59 365 Wed Wednesday Dec December 52 52 01 1970 3 3 11 PM 69 31|31|12|23|11|365|19"),
    ];
}
