//! Requests over sockets: the same handler without the layer and with it, and the gateway in front
//! of a service.

mod client;
mod gateway;
mod service;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use super::business::Order;
use super::report::{Budget, Line, Unit};
use super::rounds::{Measured, Plan, Side};
use super::server::Server;
use super::{Result, with_sqlx, with_tokio_postgres};
use client::Client;
use service::Service;

/// How many finished orders are asked for again, in each round and at the most.
const FINISHED: (usize, usize) = (100, 1_000);

/// How far away a database is that is not on the same machine: each way, so a round trip takes 1 ms.
const WIRE: Duration = Duration::from_micros(500);
/// How many requests are in flight to it: few enough that it is the wire that they wait for, not the processor.
const OVER_THE_WIRE: usize = 4;

pub(super) async fn measure(server: &Server, plan: &mut Plan) -> Result<Vec<Line>> {
    let mut lines = layer(server, plan).await?;
    lines.extend(layer_over_the_wire(server, plan).await?);
    lines.extend(gateway::measure(server, plan).await?);
    Ok(lines)
}

/// Does nothing but one side, if it is one of these.
pub(super) async fn profile(
    server: &Server,
    plan: &mut Plan,
    name: &str,
) -> Result<Option<Vec<Line>>> {
    if !NAMES.as_flattened().contains(&name) && name != EMPTY {
        return Ok(None);
    }
    let measured = rates(server, plan, None, |side| side == name).await?;
    let rate = measured.median(name);
    Ok(Some(vec![Line::new(name, rate, Unit::PerSecond)]))
}

async fn rates(
    server: &Server,
    plan: &mut Plan,
    wire: Option<Duration>,
    wanted: impl Fn(&str) -> bool,
) -> Result<Measured> {
    let url = server.database("http").await?;
    let wire = wire
        .map(|wire| server.through_wire(&url, wire))
        .transpose()?;
    let address = wire.as_ref().map_or(&url, |(_, through)| through);
    let one = with_tokio_postgres::Shop::open(address, plan.connections)?;
    let two = with_sqlx::Shop::open(address, plan.connections)?;
    let services = [
        Service::open(service::with_tokio_postgres(one)?).await?,
        Service::open(service::with_sqlx(two)?).await?,
    ];
    let mut all = Vec::new();
    for (service, names) in services.iter().zip(NAMES) {
        let finished = (FINISHED.0 * plan.rounds).min(FINISHED.1);
        all.extend(sides(service, names, finished).await?);
    }
    let client = Arc::new(Client::of(services[0].address));
    all.push(place(EMPTY, client, "/empty"));
    all.retain(|side| wanted(side.name));
    let measured = plan.rates(&all).await?;
    drop((all, services, wire));
    server.remove(&url).await?;
    Ok(measured)
}

async fn layer(server: &Server, plan: &mut Plan) -> Result<Vec<Line>> {
    let measured = rates(server, plan, None, |_| true).await?;

    let ratio = |name: &str, base: &str| {
        Line::new(
            format!("{name} ÷ {base}"),
            measured.ratio(name, base),
            Unit::Ratio,
        )
    };
    let mut lines = Vec::new();
    for [bare, joined, replay, recorded] in NAMES {
        lines.extend([
            ratio(joined, bare).within(Budget::AtLeast(0.75)),
            ratio(replay, joined).within(Budget::AtLeast(1.5)),
            ratio(recorded, bare),
        ]);
    }
    lines.push(ratio(EMPTY, NAMES[0][0]));
    lines.push(ratio(NAMES[0][1], EMPTY));
    lines.extend(
        NAMES
            .concat()
            .into_iter()
            .map(|name| Line::new(name, measured.median(name), Unit::PerSecond)),
    );
    Ok(lines)
}

/// Requests per second where the database is not on the same machine.
async fn layer_over_the_wire(server: &Server, plan: &mut Plan) -> Result<Vec<Line>> {
    let connections = std::mem::replace(&mut plan.connections, OVER_THE_WIRE);
    let wanted = |side: &str| NAMES.iter().any(|names| names[..3].contains(&side));
    let measured = rates(server, plan, Some(WIRE), wanted).await;
    plan.connections = connections;
    let measured = measured?;
    let mut lines = Vec::new();
    for [bare, joined, replay, _] in NAMES {
        for (name, base, least) in [(joined, bare, 0.75), (replay, joined, 1.5)] {
            lines.push(
                Line::new(
                    format!("{name} ÷ {base}, the database 1 ms away"),
                    measured.ratio(name, base),
                    Unit::Ratio,
                )
                .within(Budget::AtLeast(least)),
            );
        }
    }
    Ok(lines)
}

/// The handler without the layer and with two statements more that do nothing: what any protocol of two
/// statements costs at least.
const EMPTY: &str = "http, tokio-postgres: two empty statements";

/// The handler without the layer, with it, its stored answers, and the layer around it.
const NAMES: [[&str; 4]; 2] = [
    [
        "http, tokio-postgres: bare",
        "http, tokio-postgres: atomic",
        "http, tokio-postgres: replay",
        "http, tokio-postgres: leased",
    ],
    [
        "http, sqlx: bare",
        "http, sqlx: atomic",
        "http, sqlx: replay",
        "http, sqlx: leased",
    ],
];

async fn sides(
    service: &Service,
    [bare, joined, replay, recorded]: [&'static str; 4],
    count: usize,
) -> Result<[Side; 4]> {
    let client = Arc::new(Client::of(service.address));
    let mut finished = Vec::with_capacity(count);
    for _ in 0..count {
        let order = Order::new();
        client.post("/joined", &order).await?.must_be(false)?;
        finished.push(order);
    }
    Ok([
        place(bare, client.clone(), "/bare"),
        place(joined, client.clone(), "/joined"),
        again(replay, client.clone(), finished),
        place(recorded, client, "/recorded"),
    ])
}

/// Places a new order each time.
fn place(name: &'static str, client: Arc<Client>, path: &'static str) -> Side {
    Side::new(name, move || {
        let client = client.clone();
        async move {
            let placed = client.post(path, &Order::new()).await?;
            placed.must_be(false).map(drop)
        }
    })
}

/// Asks for finished orders again, one after the other.
fn again(name: &'static str, client: Arc<Client>, finished: Vec<Order>) -> Side {
    let (finished, next) = (Arc::new(finished), Arc::new(AtomicUsize::new(0)));
    Side::new(name, move || {
        let (client, finished) = (client.clone(), finished.clone());
        let place = next.fetch_add(1, Relaxed) % finished.len();
        async move {
            let response = client.post("/joined", &finished[place]).await?;
            response.must_be(true).map(drop)
        }
    })
}
