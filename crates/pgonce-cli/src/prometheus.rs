//! The program's metrics for Prometheus. docs/src/reference/metrics.md lists them all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use metrics::{describe_counter, describe_gauge, describe_histogram, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use pgonce::Once;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::inbox::{Backlog as Waiting, Inbox};
use pgonce::outbox::{Backlog, Outbox};
use pgonce::recovery::Figure;
use tokio::time::{Instant, timeout_at};

use crate::exit::{self, CliError, Result};

/// From a wake-up on the same machine to a sink that was away.
const BUCKETS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0,
];

/// Messages of a batch.
const SIZES: [f64; 12] = [
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 10_000.0,
];

const COUNTERS: [(&str, &str); 10] = [
    (
        "pgonce_trace_spans_dropped_total",
        "Spans that did not reach the collector",
    ),
    (
        "pgonce_purged_total",
        "Expired records that this process purged",
    ),
    (
        "pgonce_timers_fired_total",
        "Due timers that this process fired",
    ),
    (
        "pgonce_recovered_total",
        "Intents whose holder vanished, by what this process decided",
    ),
    (
        "pgonce_worker_jobs_total",
        "Jobs that a worker of this process ended, or whose attempt failed",
    ),
    (
        "pgonce_relay_events_total",
        "Events by what came of them: sent, retry, dead, held",
    ),
    (
        "pgonce_relay_lanes_taken_total",
        "Lanes that a relay got: at its start, from a relay that went, or that vanished",
    ),
    (
        "pgonce_relay_lanes_lost_total",
        "Lanes that a relay lost without giving them back",
    ),
    (
        "pgonce_relay_sink_unavailable_total",
        "Batches that found the sink unavailable",
    ),
    (
        "pgonce_relay_database_errors_total",
        "Errors of the database that the relay waited for to end",
    ),
];

const GAUGES: [(&str, &str); 18] = [
    (
        "pgonce_external_calls",
        "Calls to providers without a known outcome by status: sent, unknown, needs_operator; and disputed ones",
    ),
    (
        "pgonce_external_oldest_age_seconds",
        "Age of the oldest call to a provider without a known outcome",
    ),
    (
        "pgonce_stuck_intents",
        "Intents whose work stopped before its end, by classification",
    ),
    (
        "pgonce_region_lag_seconds",
        "How far this region is behind another",
    ),
    (
        "pgonce_region_double_commits",
        "Effects too many that nobody has resolved",
    ),
    (
        "pgonce_region_pending",
        "Intents whose facts arrived and are not merged",
    ),
    (
        "pgonce_purge_last_success_timestamp_seconds",
        "When this process last purged without an error",
    ),
    ("pgonce_relay_lanes", "Lanes that this process holds, of 16"),
    ("pgonce_database_up", "1: the database answered"),
    (
        "pgonce_outbox_waiting",
        "Events that a subscription has not received, counted up to 10000",
    ),
    (
        "pgonce_outbox_oldest_age_seconds",
        "Age of the oldest of them",
    ),
    (
        "pgonce_outbox_parked",
        "Parked events by state: delayed, retry, dead, behind",
    ),
    (
        "pgonce_outbox_lanes_held",
        "Lanes that any relay holds, of 16",
    ),
    (
        "pgonce_outbox_stuck",
        "1: the subscription is behind, has not moved for five minutes, and holds the log",
    ),
    ("pgonce_outbox_evicted", "1: the subscription was evicted"),
    (
        "pgonce_inbox_messages",
        "Stored messages that are not applied, by state: received, processing, retrying, poison",
    ),
    (
        "pgonce_inbox_held",
        "Those of them that wait behind another of their key",
    ),
    (
        "pgonce_inbox_oldest_age_seconds",
        "Age of the oldest of them",
    ),
];

const HISTOGRAMS: [(&str, &str); 2] = [
    (
        "pgonce_relay_pickup_seconds",
        "From publishing to being read, of the newest event of each page",
    ),
    (
        "pgonce_relay_lag_seconds",
        "From publishing to the sink's acknowledgement, of the oldest event of each batch that was never parked",
    ),
];

/// How often samples are added up.
const UPKEEP: Duration = Duration::from_secs(5);

/// Makes this process keep metrics, within a runtime. Once.
pub(crate) fn install() -> Result<PrometheusHandle> {
    let unmade = |error: metrics_exporter_prometheus::BuildError| {
        CliError::new(
            exit::FAILED,
            format!("no metrics can be kept: {error}"),
            "Please report it.",
        )
    };
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS)
        .and_then(|builder| {
            builder.set_buckets_for_metric(Matcher::Suffix("_size".to_owned()), &SIZES)
        })
        .and_then(PrometheusBuilder::install_recorder)
        .map_err(unmade)?;
    // Until it is asked to, it keeps every sample by itself: nobody may ever read the metrics.
    let kept = handle.clone();
    tokio::spawn(async move {
        loop {
            kept.run_upkeep();
            tokio::time::sleep(UPKEEP).await;
        }
    });
    for (name, help) in COUNTERS {
        describe_counter!(name, help);
    }
    for (name, help) in GAUGES {
        describe_gauge!(name, help);
    }
    for (name, help) in HISTOGRAMS {
        describe_histogram!(name, help);
    }
    Ok(handle)
}

/// Asks the database what it knows better, for one scrape, and answers whether it has answered: one that is away is waited for
/// once, less long than Prometheus waits.
pub(crate) async fn scrape(
    outbox: &Outbox<TokioPostgres>,
    consumed: &Inbox<TokioPostgres>,
    deadline: Instant,
) -> bool {
    let events = match timeout_at(deadline, outbox.backlog()).await {
        Ok(Ok(events)) => Some(events),
        // It is up: this role has the grants of another part.
        Ok(Err(error)) if error.code() == "42501" => Some(Vec::new()),
        _ => None,
    };
    backlog(events.as_deref());
    let waiting = match events {
        Some(_) => timeout_at(deadline, consumed.backlog()).await.ok(),
        None => None,
    };
    inbox(waiting.and_then(|asked| asked.ok()).as_deref());
    events.is_some()
}

/// Consumers that were seen: one that is dropped must not stand there for ever.
static SEEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Takes in how far consumers are; nothing where the database did not answer. What is not known any
/// more is NaN: an old figure would be a lie.
pub(crate) fn backlog(subscriptions: Option<&[Backlog]>) {
    gauge!("pgonce_database_up").set(if subscriptions.is_some() { 1.0 } else { 0.0 });
    let subscriptions = subscriptions.unwrap_or_default();
    let Ok(mut seen) = SEEN.lock() else { return };
    for name in seen.iter() {
        if !subscriptions
            .iter()
            .any(|subscription| subscription.subscription == *name)
        {
            Figures::unknown().publish(name);
        }
    }
    for subscription in subscriptions {
        Figures::of(subscription).publish(&subscription.subscription);
        seen.insert(subscription.subscription.clone());
    }
}

struct Figures {
    plain: [(&'static str, f64); 5],
    parked: [f64; 4],
}

impl Figures {
    fn of(consumer: &Backlog) -> Self {
        let flag = |yes: bool| if yes { 1.0 } else { 0.0 };
        let age = consumer.oldest_age.unwrap_or_default();
        Self::new(
            [
                consumer.waiting as f64,
                age.as_secs_f64(),
                f64::from(consumer.lanes_held),
                flag(consumer.stuck),
                flag(consumer.evicted.is_some()),
            ],
            consumer.parked.map(|count| count as f64),
        )
    }

    fn unknown() -> Self {
        Self::new([f64::NAN; 5], [f64::NAN; 4])
    }

    fn new(plain: [f64; 5], parked: [f64; 4]) -> Self {
        let [waiting, age, held, stuck, evicted] = plain;
        Self {
            plain: [
                ("pgonce_outbox_waiting", waiting),
                ("pgonce_outbox_oldest_age_seconds", age),
                ("pgonce_outbox_lanes_held", held),
                ("pgonce_outbox_stuck", stuck),
                ("pgonce_outbox_evicted", evicted),
            ],
            parked,
        }
    }

    fn publish(&self, consumer: &str) {
        for (name, value) in self.plain {
            gauge!(name, "subscription" => consumer.to_owned()).set(value);
        }
        for (state, value) in ["delayed", "retry", "dead", "behind"]
            .iter()
            .zip(self.parked)
        {
            gauge!("pgonce_outbox_parked", "subscription" => consumer.to_owned(), "state" => *state)
                .set(value);
        }
    }
}

/// Consumers of the inbox that were seen. One whose messages are all applied is not among those that the database
/// reports, and has none.
static SEEN_IN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Takes in what waits in the inbox, all tenants together; nothing where the database did not answer.
pub(crate) fn inbox(consumers: Option<&[Waiting]>) {
    let Ok(mut seen) = SEEN_IN.lock() else { return };
    seen.extend(
        consumers
            .iter()
            .copied()
            .flatten()
            .map(|c| c.consumer.clone()),
    );
    for name in seen.iter() {
        let mut figures = consumers.map(|_| [0.0; 6]).unwrap_or([f64::NAN; 6]);
        let its = consumers.iter().copied().flatten();
        for tenant in its.filter(|backlog| backlog.consumer == *name) {
            for (sum, count) in figures.iter_mut().zip(tenant.counts) {
                *sum += count as f64;
            }
            figures[4] += tenant.held as f64;
            let age = tenant.oldest_age.unwrap_or_default();
            figures[5] = figures[5].max(age.as_secs_f64());
        }
        let [received, processing, retrying, poison, held, age] = figures;
        for (state, value) in [
            ("received", received),
            ("processing", processing),
            ("retrying", retrying),
            ("poison", poison),
        ] {
            gauge!("pgonce_inbox_messages", "consumer" => name.clone(), "state" => state)
                .set(value);
        }
        gauge!("pgonce_inbox_held", "consumer" => name.clone()).set(held);
        gauge!("pgonce_inbox_oldest_age_seconds", "consumer" => name.clone()).set(age);
    }
}

/// Maximum number of providers with series of their own; what is beyond is `other`.
const MAX_PROVIDERS: usize = 50;

/// Providers that were seen.
static SEEN_PROVIDERS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Asks what waits for somebody: calls to providers, and intents that are stuck. Nothing of that is known where nobody is asked.
pub(crate) async fn figures(once: Option<&Once<TokioPostgres>>, deadline: Instant) {
    let asked = match once {
        Some(once) => timeout_at(deadline, once.figures()).await.ok(),
        None => None,
    };
    waiting(asked.and_then(|asked| asked.ok()).as_deref());
}

fn waiting(figures: Option<&[Figure]>) {
    let Ok(mut seen) = SEEN_PROVIDERS.lock() else {
        return;
    };
    let mut sums: BTreeMap<(String, &str), f64> = BTreeMap::new();
    let mut oldest: BTreeMap<String, f64> = BTreeMap::new();
    let mut stuck: BTreeMap<&str, f64> = BTreeMap::new();
    for (figure, name, state, value) in figures.unwrap_or_default() {
        if figure == "stuck" {
            stuck.insert(name, *value);
            continue;
        }
        let known = seen.contains(name) || seen.len() < MAX_PROVIDERS;
        let provider = if known { name } else { "other" }.to_owned();
        seen.insert(provider.clone());
        if figure == "external_calls" {
            *sums.entry((provider, state)).or_default() += value;
        } else {
            let age = oldest.entry(provider).or_default();
            *age = age.max(*value);
        }
    }
    // Those that have none now are at zero, or not known.
    let none = if figures.is_some() { 0.0 } else { f64::NAN };
    for provider in seen.iter() {
        for status in ["sent", "unknown", "needs_operator", "disputed"] {
            let count = sums.get(&(provider.clone(), status)).unwrap_or(&none);
            gauge!("pgonce_external_calls", "provider" => provider.clone(), "status" => status)
                .set(*count);
        }
        let age = oldest.get(provider).unwrap_or(&none);
        gauge!("pgonce_external_oldest_age_seconds", "provider" => provider.clone()).set(*age);
    }
    for classification in [
        "safe_to_retry",
        "needs_probe",
        "needs_manual_action",
        "abandoned",
    ] {
        let count = stuck.get(classification).unwrap_or(&none);
        gauge!("pgonce_stuck_intents", "classification" => classification).set(*count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_have_a_bounded_number_of_series() {
        let many = |n: usize| {
            let name = format!("p{n}");
            ("external_calls".to_owned(), name, "sent".to_owned(), 1.0)
        };
        let figures: Vec<Figure> = (0..500).map(many).collect();
        waiting(Some(&figures));
        let seen = SEEN_PROVIDERS.lock().unwrap();
        assert!(seen.len() <= MAX_PROVIDERS + 1, "{}", seen.len());
        assert!(seen.contains("other"));
    }

    #[test]
    fn the_page_of_the_docs_lists_every_metric() {
        let page = include_str!("../../../docs/src/reference/metrics.md");
        for (name, _) in COUNTERS.iter().chain(&GAUGES).chain(&HISTOGRAMS) {
            assert!(
                page.contains(&format!("| `{name}`")),
                "docs/src/reference/metrics.md lacks {name}"
            );
        }
    }
}
