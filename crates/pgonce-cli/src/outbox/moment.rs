//! Points in time and in the log, as people write them.

use std::str::FromStr;

/// A time: `2h` is two hours ago, in seconds here, everything else is PostgreSQL's timestamptz.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Moment {
    Ago(String),
    At(String),
}

/// A bound in the log: the number of an event, or a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Bound {
    Number(String),
    Time(Moment),
}

impl Moment {
    /// The time in SQL, where the text is parameter `number`.
    pub(super) fn sql(&self, number: usize) -> String {
        match self {
            Self::Ago(_) => format!("pgonce.now() - ${number}::text::interval"),
            Self::At(_) => format!("${number}::text::timestamptz"),
        }
    }

    pub(super) fn text(&self) -> &str {
        match self {
            Self::Ago(text) | Self::At(text) => text,
        }
    }
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim().to_owned();
        if text.is_empty() || text.parse::<f64>().is_ok() {
            return Err(
                "give a time such as 2h, which is two hours ago, or '2026-05-01 12:00+02'"
                    .to_owned(),
            );
        }
        Ok(match humantime::parse_duration(&text) {
            // Not the text itself: what is a month here, 1M, is a minute in PostgreSQL.
            Ok(length) => Self::Ago(format!("{} seconds", length.as_secs_f64())),
            Err(_) => Self::At(text),
        })
    }
}

impl FromStr for Bound {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim().parse::<i64>() {
            Ok(number) if number >= 0 => Ok(Self::Number(number.to_string())),
            Ok(_) => {
                Err("give the number of an event, which is not negative, or a time".to_owned())
            }
            Err(_) => text.parse().map(Self::Time),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_so_long_ago_and_a_number_is_no_time() {
        let ago = |seconds: &str| Moment::Ago(format!("{seconds} seconds"));
        assert_eq!("2h 30m".parse(), Ok(ago("9000")));
        assert_eq!("1M".parse(), Ok(ago("2630016")));
        assert_eq!("1500ms".parse(), Ok(ago("1.5")));
        assert_eq!("2026-05-01".parse(), Ok(Moment::At("2026-05-01".into())));
        assert!("30".parse::<Moment>().is_err() && "".parse::<Moment>().is_err());
        assert_eq!("30".parse(), Ok(Bound::Number("30".into())));
        assert_eq!("1d".parse(), Ok(Bound::Time(ago("86400"))));
        assert!("-1".parse::<Bound>().is_err() && "1.5".parse::<Bound>().is_err());
    }
}
