//! What must hold between the fields of a file, beyond each being readable.

use std::ops::Range;

use pgonce_http::gateway::Fault;
use toml::Spanned;

use super::config::{Config, Create, Relay};
use super::sink;

/// Longer names are refused by the database.
const MAX_NAME_BYTES: usize = 255;

pub(super) fn faults(config: &Config, text: &str) -> Vec<Fault> {
    let mut checked = Checked {
        text,
        faults: Vec::new(),
    };
    checked.faults.extend(config.database.fault(text));
    if config.relays.is_empty() {
        checked.refuse(
            0..0,
            "there is no relay in the file",
            "Add a table [[relays]] with `subscription` and `sink`.",
        );
    }
    for (number, relay) in config.relays.iter().enumerate() {
        checked.relay(relay);
        let same = |other: &Relay| other.name() == relay.name();
        if config.relays[..number].iter().any(same) {
            checked.refuse(
                relay.subscription.span(),
                format!("subscription {:?} has a relay already", relay.name()),
                "Each event goes to a subscription once: give the second sink a subscription of its own.",
            );
        }
    }
    checked.faults
}

struct Checked<'a> {
    text: &'a str,
    faults: Vec<Fault>,
}

impl Checked<'_> {
    fn refuse(&mut self, span: Range<usize>, what: impl Into<String>, hint: impl Into<String>) {
        self.faults.push(Fault::at(self.text, span, what, hint));
    }

    fn relay(&mut self, relay: &Relay) {
        if !(1..=MAX_NAME_BYTES).contains(&relay.name().len()) {
            self.refuse(
                relay.subscription.span(),
                format!("a subscription's name has 1 to {MAX_NAME_BYTES} bytes"),
                "Name who gets the events, such as \"billing\".",
            );
        }
        match (&relay.sink, &relay.sink_env) {
            (Some(url), None) => {
                if let Err(wrong) = sink::check(url.get_ref()) {
                    self.refuse(url.span(), wrong.what, wrong.hint);
                }
            }
            (None, Some(_)) => {}
            (Some(_), Some(second)) => self.refuse(
                second.span(),
                "the sink is given in two places",
                "Keep one of `sink` and `sink_env`.",
            ),
            (None, None) => self.refuse(
                relay.subscription.span(),
                format!("the relay of {:?} has no sink", relay.name()),
                "Say where its events go: sink = \"stdout:\", or sink_env = \"NAME\".",
            ),
        }
        self.within(&relay.in_flight, 1..=100_000, "events");
        self.within(&relay.lane_events, 16..=10_000, "events");
        if let Some(bytes) = &relay.lane_bytes
            && !(16 * 1024..=64 * 1024 * 1024).contains(&bytes.get_ref().0)
        {
            self.refuse(
                bytes.span(),
                "a lane holds \"16 KiB\" to \"64 MiB\" in memory",
                "Sixteen lanes may be held at once: \"256 KiB\" is enough for most.",
            );
        }
        if let Some(lease) = &relay.lease
            && lease.get_ref().0.as_millis() < 1000
        {
            self.refuse(
                lease.span(),
                "a lease so short would run out between two renewals",
                "Give \"1s\" or more.",
            );
        }
        if let Some(create) = &relay.create {
            self.create(create);
        }
    }

    fn create(&mut self, create: &Create) {
        for list in [&create.topics, &create.types, &create.tenants] {
            if let Some(list) = list.as_ref().filter(|list| list.get_ref().is_empty()) {
                self.refuse(
                    list.span(),
                    "nothing fits an empty list",
                    "Leave it out for everything, or name patterns such as [\"orders\", \"refunds.*\"].",
                );
            }
        }
        if let Some(attempts) = create.max_attempts.as_ref().filter(|n| *n.get_ref() == 0) {
            self.refuse(
                attempts.span(),
                "an event is tried at least once",
                "Give 1 or more, such as 10.",
            );
        }
        let (first, at_most) = create.pauses();
        if first.is_zero() || at_most < first {
            let span = create.backoff.as_ref().or(create.max_backoff.as_ref());
            self.refuse(
                span.map_or(0..0, Spanned::span),
                format!("the pause between two tries cannot grow from {first:?} to {at_most:?}"),
                "Give `backoff` a length above zero and `max_backoff` one that is not shorter.",
            );
        }
        if let Some(limit) = &create.dead_limit
            && i32::try_from(*limit.get_ref()).is_err()
        {
            self.refuse(
                limit.span(),
                "the database cannot count so many dead letters",
                "Give 2147483647 or less, such as 10000.",
            );
        }
    }

    fn within(
        &mut self,
        value: &Option<Spanned<usize>>,
        range: std::ops::RangeInclusive<usize>,
        what: &str,
    ) {
        if let Some(value) = value
            && !range.contains(value.get_ref())
        {
            self.refuse(
                value.span(),
                format!("{} {what} are not possible here", value.get_ref()),
                format!("Give {} to {}.", range.start(), range.end()),
            );
        }
    }
}
