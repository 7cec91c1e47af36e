//! Values as people write them: lengths of time and sizes.

use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

/// A length of time such as "30s".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Length(pub(crate) Duration);

/// A number of bytes such as "1 MiB".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub(crate) usize);

/// Reads a length of time, also from a flag.
pub(crate) fn length(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|why| {
        format!(
            "{text:?} is no length of time ({why}), expected such as \"250ms\", \"30s\", \"15m\" or \"7d\""
        )
    })
}

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        length(&text).map(Self).map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let size = text.parse::<bytesize::ByteSize>().ok();
        let size = size.and_then(|size| usize::try_from(size.as_u64()).ok());
        size.map(Self).ok_or_else(|| {
            D::Error::custom(format!(
                "{text:?} is no size, expected such as \"64 KiB\" or \"1 MiB\""
            ))
        })
    }
}
