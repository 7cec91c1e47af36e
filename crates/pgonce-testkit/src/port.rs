use std::{
    hash::{BuildHasher, RandomState},
    net::{Ipv4Addr, TcpListener},
};

use crate::{Error, Result};

/// Below the range from which systems hand out ports for outgoing
/// connections: a server that was stopped finds its port still free later.
const RANGE: std::ops::Range<u64> = 18_000..32_000;

/// A loopback port that nobody listens on at this moment. Another process may
/// still be quicker, so the caller tries again.
pub(crate) fn free() -> Result<u16> {
    let chance = RandomState::new();
    (0..200_u32)
        .map(|attempt| RANGE.start + chance.hash_one(attempt) % (RANGE.end - RANGE.start))
        .filter_map(|port| u16::try_from(port).ok())
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .ok_or_else(|| Error::Io {
            what: format!("find a free loopback port in {RANGE:?}; end some listening programs"),
            source: std::io::ErrorKind::AddrInUse.into(),
        })
}
