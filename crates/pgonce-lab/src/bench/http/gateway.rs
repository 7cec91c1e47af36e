//! What the gateway adds to a request while many are in flight.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::post;
use futures_util::future::try_join_all;
use http::StatusCode;
use pgonce_http::gateway::{Config, Gateway};
use rand::seq::SliceRandom as _;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::client::Client;
use super::service::Service;
use crate::bench::business::{Order, SCOPE};
use crate::bench::report::{Budget, Line, Unit};
use crate::bench::rounds::{Plan, Side, median};
use crate::bench::server::Server;
use crate::bench::{Result, with_tokio_postgres};

const IN_FLIGHT: usize = 200;

/// How long the upstream takes. With so many in flight, that is a load that a small machine can
/// carry: where it is full, the time of a request says only how many others are waiting.
const UPSTREAM: Duration = Duration::from_millis(400);

/// Several requests of each worker.
const TURN: Duration = Duration::from_millis(1_200);

/// A turn has hundreds of requests: few of them are enough.
const ROUNDS: usize = 5;

/// How long the upstream took for an answer, by its own clock, in nanoseconds.
const TOOK: &str = "x-took";

const DIRECT: &str = "http: directly";
const PASSED: &str = "http: through the gateway, passed";
const ONCE: &str = "http: through the gateway, once";

pub(super) async fn measure(server: &Server, plan: &mut Plan) -> Result<Vec<Line>> {
    let url = server.database("gateway").await?;
    let shop = with_tokio_postgres::Shop::open(&url, plan.connections)?;
    let upstream = Service::open(upstream()).await?;
    let gateway = Running::start(&shop, upstream.address).await?;
    let near = Arc::new(Client::of(upstream.address));
    let far = Arc::new(Client::of(gateway.address));

    let ways = [
        Way(DIRECT, near.clone(), "/slow/passed"),
        Way(PASSED, far.clone(), "/slow/passed"),
        Way(ONCE, far.clone(), "/slow/once"),
    ];
    let mut lines = in_flight(plan, &ways).await?;
    let ways = [
        Way(DIRECT, near, "/quick/passed"),
        Way(PASSED, far.clone(), "/quick/passed"),
        Way(ONCE, far, "/quick/once"),
    ];
    lines.extend(saturated(plan, &ways).await?);
    drop(ways);
    gateway.end().await?;
    drop((upstream, shop));
    server.remove(&url).await?;
    Ok(lines)
}

/// A way to the upstream: its name, whom to ask, and for what.
#[derive(Debug, Clone)]
struct Way(&'static str, Arc<Client>, &'static str);

impl Way {
    async fn place(&self) -> Result<Duration> {
        let start = Instant::now();
        let answer = self.1.post(self.2, &Order::new()).await?.must_be(false)?;
        let all = start.elapsed();
        let took = answer.headers.get(TOOK).ok_or("the upstream's time")?;
        let took = Duration::from_nanos(took.to_str()?.parse()?);
        Ok(all.saturating_sub(took))
    }

    /// The median time of a request without the upstream's own, in microseconds.
    ///
    /// The upstream wakes up when its timer ticks, and so would whatever waits for it: in the time
    /// of the whole request up to a tick of what the gateway adds would not be seen.
    async fn time(&self) -> Result<f64> {
        let start = Instant::now();
        let workers = (0..IN_FLIGHT).map(|place| {
            let way = self.clone();
            tokio::spawn(async move {
                // Evenly, as many clients that know nothing of each other would come.
                let begin = UPSTREAM.mul_f64(place as f64 / IN_FLIGHT as f64);
                tokio::time::sleep(begin).await;
                let mut times = Vec::new();
                while start.elapsed() < TURN {
                    times.push(way.place().await?.as_secs_f64() * 1e6);
                }
                Result::Ok(times)
            })
        });
        let times = try_join_all(workers).await?;
        let times: Vec<Vec<f64>> = times.into_iter().collect::<Result<_>>()?;
        Ok(median(times.concat()))
    }
}

async fn in_flight(plan: &mut Plan, ways: &[Way]) -> Result<Vec<Line>> {
    let mut times = vec![Vec::new(); ways.len()];
    let mut order: Vec<usize> = (0..ways.len()).collect();
    // The first round opens connections, and is not counted.
    for round in 0..=plan.rounds.min(ROUNDS) {
        order.shuffle(&mut plan.random);
        for &i in &order {
            let time = ways[i].time().await?;
            if round > 0 {
                times[i].push(time);
            }
        }
    }
    let mut lines = Vec::new();
    for (Way(name, ..), each) in ways.iter().zip(&times).skip(1) {
        let more = each.iter().zip(&times[0]).map(|(time, near)| time - near);
        let line = Line::new(
            format!("{name} − directly, median with {IN_FLIGHT} in flight"),
            median(more.collect()),
            Unit::Microseconds,
        );
        lines.push(line.within(Budget::AtMost(1_000.0)));
    }
    Ok(lines)
}

/// As many requests as go, to an upstream that answers at once.
async fn saturated(plan: &mut Plan, ways: &[Way]) -> Result<Vec<Line>> {
    let sides: Vec<_> = ways
        .iter()
        .map(|way| {
            let (name, way) = (way.0, way.clone());
            Side::new(name, move || {
                let way = way.clone();
                async move { way.place().await.map(drop) }
            })
        })
        .collect();
    let connections = std::mem::replace(&mut plan.connections, IN_FLIGHT);
    let measured = plan.rates(&sides).await;
    plan.connections = connections;
    let measured = measured?;
    Ok(sides
        .iter()
        .map(|side| {
            let name = format!("{}, {IN_FLIGHT} in flight, at full load", side.name);
            Line::new(name, measured.median(side.name), Unit::PerSecond)
        })
        .collect())
}

fn upstream() -> Router {
    let answer = async |wait: Duration| {
        let start = Instant::now();
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        let took = start.elapsed().as_nanos().to_string();
        (StatusCode::CREATED, [(TOOK, took)], r#"{"state":"placed"}"#)
    };
    Router::new()
        .route("/slow/{way}", post(move || answer(UPSTREAM)))
        .route("/quick/{way}", post(move || answer(Duration::ZERO)))
}

/// A gateway that serves.
struct Running {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Running {
    async fn start(shop: &with_tokio_postgres::Shop, upstream: SocketAddr) -> Result<Self> {
        let text = format!(
            r#"
            [listen]
            address = "127.0.0.1:0"
            admin = "127.0.0.1:0"
            # What takes long on a busy machine is measured, not refused.
            [database]
            timeout = "60s"
            [upstreams.shop]
            url = "http://{upstream}"
            keep_alive = "10s"
            [scopes."{SCOPE}"]
            retention = "7d"
            [[routes]]
            path = "/{{speed}}/once"
            methods = ["POST"]
            upstream = "shop"
            [routes.once]
            scope = "{SCOPE}"
            principal = "none"
            [[routes]]
            path = "/{{*rest}}"
            upstream = "shop"
            "#
        );
        let config = Config::parse("the gateway of the bench", &text)
            .map_err(|faults| format!("{faults:?}"))?;
        let gateway = Gateway::new(config, shop.once.clone())?;
        let bound = gateway.bind().await?;
        let address = bound.address();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            // A client that has gone wants it to stop as well.
            let stopped = async move { drop(stopped.await) };
            bound.run(stopped).await;
        });
        Ok(Self {
            address,
            stop,
            task,
        })
    }

    async fn end(self) -> Result<()> {
        drop(self.stop);
        Ok(self.task.await?)
    }
}
