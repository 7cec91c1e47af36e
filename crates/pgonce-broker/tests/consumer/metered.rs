//! What a consumer reports as metrics.

use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use pgonce::{Error, Failure};

use super::fixture::{Fixture, Running, message};

#[tokio::test]
async fn what_a_consumer_did_is_in_its_metrics() {
    let fixture = Fixture::new().await;
    let failed = std::sync::atomic::AtomicBool::new(false);
    fixture.witness.script(move |id| match id {
        "m2" => Err(Failure::permanent("no", "never").into()),
        "m3" if !failed.swap(true, std::sync::atomic::Ordering::SeqCst) => {
            Err(Error::work("later"))
        }
        _ => Ok(()),
    });
    for n in [1, 2, 3, 4, 4] {
        let mut sent = message(n, 10);
        sent.sent_at = Some(std::time::SystemTime::now() - Duration::from_secs(30));
        fixture.shop.send(sent);
    }
    let recorder = PrometheusBuilder::new().build_recorder();
    let consumer = metrics::with_local_recorder(&recorder, || fixture.consumer());
    // One by one, so that each fails for itself.
    let running = Running::start(consumer.batch(1, Duration::ZERO));
    fixture.wait_for(3).await;
    fixture.wait_for_acks(5).await;
    running.stop().await.unwrap();
    let reply = recorder.handle().render();
    for (name, expected) in [
        ("received_total", 5),
        ("applied_total", 3),
        ("duplicates_total", 1),
        ("conflicts_total", 0),
        ("retried_total", 1),
        ("poisoned_total", 1),
        ("acknowledged_total", 5),
        ("lost_acknowledgements_total", 0),
    ] {
        let line = format!("pgonce_consumer_{name}{{consumer=\"c\"}} {expected}");
        assert!(reply.contains(&line), "{line} is not in\n{reply}");
    }
    for (name, least) in [
        ("batch_size_count", 1.0),
        ("batch_size_sum", 3.0),
        ("lag_seconds_sum", 30.0),
    ] {
        let line = format!("pgonce_consumer_{name}{{consumer=\"c\"}} ");
        let figure = reply.lines().find_map(|l| l.strip_prefix(line.as_str()));
        let figure: f64 = figure
            .unwrap_or_else(|| panic!("{line}: {reply}"))
            .parse()
            .unwrap();
        assert!(figure >= least, "{line}{figure}");
    }
}
