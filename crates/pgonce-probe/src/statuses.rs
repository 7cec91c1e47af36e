//! Statuses that are right: those of a case, and those that were allowed.

use clap::ValueEnum as _;

use super::case::Case;
use crate::exit::{self, CliError, Result};

/// `--allow CASE=STATUS,…`
#[derive(Debug, Clone)]
pub(super) struct Allow {
    pub(super) case: Case,
    pub(super) statuses: Statuses,
}

impl std::str::FromStr for Allow {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (case, statuses) = text
            .split_once('=')
            .ok_or("write CASE=STATUS, such as missing-key=2xx")?;
        Ok(Self {
            case: Case::from_str(case, false).map_err(|_| {
                format!("there is no case {case:?}; `pgonce probe --list` shows them")
            })?,
            statuses: statuses.parse()?,
        })
    }
}

impl Allow {
    /// A wrong word here would silently allow nothing.
    pub(super) fn check(&self) -> Result {
        if !self.case.about().statuses.is_empty() {
            return Ok(());
        }
        Err(CliError::new(
            exit::USAGE,
            format!(
                "the case {} judges no status, so none can be allowed",
                self.case.name()
            ),
            "Leave the case out with --skip, or look at `pgonce probe --list`.",
        ))
    }
}

/// Statuses, each as 201 or as 2xx.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Statuses(Vec<std::ops::RangeInclusive<u16>>);

impl Statuses {
    pub(super) fn include(&self, status: u16) -> bool {
        self.0.iter().any(|range| range.contains(&status))
    }
}

impl std::str::FromStr for Statuses {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let one = |word: &str| {
            let range = match word.strip_suffix("xx").map(str::parse::<u16>) {
                Some(Ok(class @ 1..=5)) => Some(class * 100..=class * 100 + 99),
                Some(_) => None,
                None => word
                    .parse()
                    .ok()
                    .filter(|status| (100..600).contains(status))
                    .map(|status| status..=status),
            };
            range.ok_or_else(|| format!("{word:?} is no status; write 201, or 2xx for all of them"))
        };
        text.split(',')
            .map(one)
            .collect::<std::result::Result<_, _>>()
            .map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_numbers_or_classes() {
        let some: Statuses = "201,4xx".parse().unwrap();
        assert!(some.include(201) && some.include(409) && !some.include(200));
        for wrong in ["", "20", "6xx", "2x", "600", "201,,"] {
            assert!(wrong.parse::<Statuses>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_judges_no_status_allows_none() {
        let allow: Allow = "missing-key=2xx".parse().unwrap();
        assert!(allow.check().is_ok());
        assert!("replay-date=200".parse::<Allow>().unwrap().check().is_err());
        assert!("missing_key=200".parse::<Allow>().is_err());
        assert!("missing-key".parse::<Allow>().is_err());
    }
}
