//! A relay whose metrics somebody collects, beside one whose metrics nobody does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use rand::seq::SliceRandom as _;

use super::{Result, Size, fill, from_the_start, outbox, sink};
use crate::bench::report::{Budget, Line, Unit as Shown};
use crate::bench::rounds::{Measured, Plan};
use crate::bench::server::Server;

const QUIET: &str = "metrics: relay without them";
const METERED: &str = "metrics: relay with them";

/// Collects only while it is on: a program has one recorder for ever.
#[derive(Clone)]
struct Switch {
    on: Arc<AtomicBool>,
    inner: Arc<PrometheusRecorder>,
}

impl Switch {
    fn is_on(&self) -> bool {
        self.on.load(Ordering::SeqCst)
    }
}

impl Recorder for Switch {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        match self.is_on() {
            true => self.inner.register_counter(key, metadata),
            false => Counter::noop(),
        }
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        match self.is_on() {
            true => self.inner.register_gauge(key, metadata),
            false => Gauge::noop(),
        }
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        match self.is_on() {
            true => self.inner.register_histogram(key, metadata),
            false => Histogram::noop(),
        }
    }
}

/// The recorder of this process.
fn recorder() -> Result<(Switch, PrometheusHandle)> {
    static ONE: OnceLock<(Switch, PrometheusHandle)> = OnceLock::new();
    if let Some(one) = ONE.get() {
        return Ok(one.clone());
    }
    let buckets = [0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0];
    let inner = PrometheusBuilder::new()
        .set_buckets(&buckets)?
        .build_recorder();
    let handle = inner.handle();
    let switch = Switch {
        on: Arc::default(),
        inner: Arc::new(inner),
    };
    metrics::set_global_recorder(switch.clone())
        .map_err(|_| "this process has a recorder already")?;
    Ok(ONE.get_or_init(|| (switch, handle)).clone())
}

pub(in crate::bench) async fn metered(
    server: &Server,
    plan: &mut Plan,
    size: &Size,
) -> Result<Vec<Line>> {
    let (switch, handle) = recorder()?;
    let url = server.database("metered").await?;
    fill(&url, size.events, size.events).await?;
    let log = outbox(&url)?;
    let mut rates: [Vec<f64>; 2] = Default::default();
    let mut order = [false, true];
    for round in 0..=plan.rounds {
        order.shuffle(&mut plan.random);
        for on in order {
            from_the_start(&log).await?;
            switch.on.store(on, Ordering::SeqCst);
            let began = Instant::now();
            sink::relay(log.clone(), size.events, false).await?;
            if on {
                // One scrape, as somebody does who collects.
                handle.render();
            }
            // The first round warms up.
            if round > 0 {
                rates[usize::from(on)].push(size.events as f64 / began.elapsed().as_secs_f64());
            }
        }
    }
    switch.on.store(false, Ordering::SeqCst);
    drop(log);
    server.remove(&url).await?;
    let [quiet, with] = rates;
    let measured = Measured::new(vec![(QUIET, quiet), (METERED, with)]);
    let what = format!("{METERED} ÷ {QUIET}");
    let ratio = Line::new(what, measured.ratio(METERED, QUIET), Shown::Ratio);
    let mut lines = vec![ratio.within(Budget::AtLeast(0.98))];
    let rate = |name| Line::new(name, measured.median(name), Shown::PerSecond);
    lines.extend([QUIET, METERED].map(rate));
    Ok(lines)
}
