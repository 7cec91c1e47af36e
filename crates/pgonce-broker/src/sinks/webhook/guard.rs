//! Which addresses may be called.
//!
//! Anyone who can choose an endpoint could otherwise make the relay talk to what only it can reach: the
//! cloud's metadata service, a database's admin port, itself. What counts is the address that a name
//! resolves to, at the moment of connecting.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use hyper_util::client::legacy::connect::dns::Name;
use ipnet::IpNet;
use tokio::net::lookup_host;
use tower::Service;

use super::refused;
use crate::sinks::Refusal;

#[derive(Debug, Clone)]
pub(super) struct Guard {
    allowed: Arc<[IpNet]>,
}

impl Guard {
    pub(super) fn allowing(networks: &[String]) -> Result<Self, Refusal> {
        let read = |text: &String| {
            let address = text.parse::<IpAddr>().map(IpNet::from);
            address
                .or_else(|_| text.parse::<IpNet>())
                .map_err(|_| Refusal::BadOption {
                    option: "allow".to_owned(),
                    value: text.clone(),
                    expected: "an address or a network, such as 10.1.0.0/16".to_owned(),
                })
        };
        let allowed: Result<Vec<_>, _> = networks.iter().map(read).collect();
        Ok(Self {
            allowed: allowed?.into(),
        })
    }

    /// An early answer for the operator. An address in the URL is never resolved again, so
    /// for those it is also the last.
    pub(super) async fn check(&self, host: &str, port: u16) -> Result<(), Refusal> {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = bare.parse::<IpAddr>() {
            return match self.lets_through(address) {
                true => Ok(()),
                false => Err(refused(not_public(bare, address))),
            };
        }
        match self.resolve_name(bare, port).await {
            Ok(_) => Ok(()),
            Err(Refused::Address(why)) => Err(refused(why)),
            Err(Refused::Unknown(why)) => Err(Refusal::Unreachable {
                sink: super::SINK,
                why,
            }),
        }
    }

    async fn resolve_name(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, Refused> {
        let unknown = |error: std::io::Error| {
            Refused::Unknown(format!("{host:?} cannot be resolved: {error}"))
        };
        let found: Vec<_> = lookup_host((host, port)).await.map_err(unknown)?.collect();
        let (good, bad): (Vec<_>, Vec<_>) =
            (found.into_iter()).partition(|address| self.lets_through(address.ip()));
        match (good.is_empty(), bad.first()) {
            (false, _) => Ok(good),
            (true, Some(address)) => Err(Refused::Address(not_public(host, address.ip()))),
            (true, None) => Err(Refused::Unknown(format!("{host:?} has no address"))),
        }
    }

    fn lets_through(&self, address: IpAddr) -> bool {
        let address = plain(address);
        is_public(address)
            || self
                .allowed
                .iter()
                .any(|network| network.contains(&address))
    }
}

enum Refused {
    Address(String),
    Unknown(String),
}

/// The client connects to what this answers and to nothing else.
impl Service<Name> for Guard {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = std::io::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let guard = self.clone();
        Box::pin(async move {
            match guard.resolve_name(name.as_str(), 0).await {
                Ok(addresses) => Ok(addresses.into_iter()),
                Err(Refused::Address(why) | Refused::Unknown(why)) => {
                    Err(std::io::Error::other(why))
                }
            }
        })
    }
}

fn not_public(host: &str, address: IpAddr) -> String {
    format!(
        "{host:?} is {address}, which is not a public address: allow it or its network if you mean it \
         (allow = [\"{address}\"])"
    )
}

/// An IPv4 address in IPv6 clothes is what it is.
fn plain(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(six) => embedded(six).map_or(address, IpAddr::V4),
    }
}

/// Mapped, compatible, NAT64 and 6to4 addresses lead to an IPv4 address.
fn embedded(six: Ipv6Addr) -> Option<Ipv4Addr> {
    let four = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match six.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low] => Some(four(high, low)),
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => Some(four(high, low)),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(four(high, low)),
        [0x2002, high, low, ..] => Some(four(high, low)),
        _ => None,
    }
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(four) => {
            let [a, b, c, _] = four.octets();
            !(four.is_private()
                || four.is_loopback()
                || four.is_link_local()
                || four.is_broadcast()
                || four.is_documentation()
                || four.is_multicast()
                || a == 0
                || a >= 240
                || (a == 100 && (64..128).contains(&b)) // carriers' own
                || (a == 192 && b == 0 && c == 0)
                || (a == 198 && (b == 18 || b == 19))) // for measurements
        }
        IpAddr::V6(six) => {
            let [first, second, ..] = six.segments();
            // Only what is handed out to the public, without tunnels (Teredo) and examples.
            (first & 0xe000) == 0x2000
                && !(first == 0x2001 && second < 0x0200)
                && !(first == 0x2001 && second == 0x0db8)
                && first != 0x3fff
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lets_through(guard: &Guard, address: &str) -> bool {
        guard.lets_through(address.parse().unwrap())
    }

    #[test]
    fn only_public_addresses_are_called_in_whatever_clothes() {
        let guard = Guard::allowing(&[]).unwrap();
        for inside in [
            "127.0.0.1",
            "127.9.9.9",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "192.0.0.192",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "240.0.0.1",
            "::1",
            "::",
            "fe80::1",
            "fc00::1",
            "fd00:ec2::254",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::7f00:1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001::1",
            "2001:db8::1",
            "fec0::1",
            "64:ff9b:1::1",
        ] {
            assert!(!lets_through(&guard, inside), "{inside}");
        }
        for outside in [
            "1.1.1.1",
            "172.32.0.1",
            "93.184.216.34",
            "2606:4700::1111",
            "::ffff:1.1.1.1",
        ] {
            assert!(lets_through(&guard, outside), "{outside}");
        }
    }

    #[test]
    fn what_is_allowed_is_allowed_and_nothing_beside_it() {
        let guard = Guard::allowing(&["10.1.0.0/16".to_owned(), "::1".to_owned()]).unwrap();
        assert!(lets_through(&guard, "10.1.2.3") && lets_through(&guard, "::1"));
        assert!(lets_through(&guard, "::ffff:10.1.2.3"));
        assert!(!lets_through(&guard, "10.2.0.1") && !lets_through(&guard, "127.0.0.1"));
        let refusal = Guard::allowing(&["everything".to_owned()]).unwrap_err();
        assert!(refusal.to_string().contains("10.1.0.0/16"), "{refusal}");
    }

    #[tokio::test]
    async fn a_name_is_judged_by_what_it_resolves_to() {
        let mut guard = Guard::allowing(&[]).unwrap();
        let refusal = guard.check("localhost", 80).await.unwrap_err();
        assert_eq!(refusal.code(), "sink-refused");
        let reply = guard.call("localhost".parse().unwrap()).await;
        let reply = reply.err().unwrap().to_string();
        assert!(reply.contains("not a public address"), "{reply}");
        assert!(guard.check("[::1]", 80).await.is_err());
    }
}
