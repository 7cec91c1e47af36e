//! Requests over sockets: the same handler without the layer and with it, and the gateway in front
//! of a service.

mod client;
mod gateway;
mod service;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::business::Order;
use super::report::{Budget, Line, Unit};
use super::rounds::{Measured, Plan, Side};
use super::server::Server;
use super::{Result, with_sqlx, with_tokio_postgres};
use client::Client;
use service::Service;

/// How many finished orders are asked for again.
const FINISHED: usize = 1_000;

pub(super) async fn measure(server: &Server, plan: &mut Plan) -> Result<Vec<Line>> {
    let mut lines = layer(server, plan).await?;
    lines.extend(gateway::measure(server, plan).await?);
    Ok(lines)
}

/// Does nothing but one side, if it is one of these.
pub(super) async fn profile(
    server: &Server,
    plan: &mut Plan,
    name: &str,
) -> Result<Option<Vec<Line>>> {
    if !NAMES.as_flattened().contains(&name) {
        return Ok(None);
    }
    let measured = rates(server, plan, |side| side == name).await?;
    let rate = measured.median(name);
    Ok(Some(vec![Line::new(name, rate, Unit::PerSecond)]))
}

async fn rates(
    server: &Server,
    plan: &mut Plan,
    wanted: impl Fn(&str) -> bool,
) -> Result<Measured> {
    let url = server.database("http").await?;
    let one = with_tokio_postgres::Shop::open(&url, plan.connections)?;
    let two = with_sqlx::Shop::open(&url, plan.connections)?;
    let services = [
        Service::open(service::with_tokio_postgres(one)?).await?,
        Service::open(service::with_sqlx(two)?).await?,
    ];
    let mut all = Vec::new();
    for (service, names) in services.iter().zip(NAMES) {
        all.extend(sides(service, names).await?);
    }
    all.retain(|side| wanted(side.name));
    let measured = plan.rates(&all).await?;
    drop((all, services));
    server.remove(&url).await?;
    Ok(measured)
}

async fn layer(server: &Server, plan: &mut Plan) -> Result<Vec<Line>> {
    let measured = rates(server, plan, |_| true).await?;

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
    lines.extend(
        NAMES
            .concat()
            .into_iter()
            .map(|name| Line::new(name, measured.median(name), Unit::PerSecond)),
    );
    Ok(lines)
}

/// The handler without the layer, with it, its stored answers, and the layer around it.
const NAMES: [[&str; 4]; 2] = [
    [
        "http, tokio-postgres: bare",
        "http, tokio-postgres: joined",
        "http, tokio-postgres: replay",
        "http, tokio-postgres: recorded",
    ],
    [
        "http, sqlx: bare",
        "http, sqlx: joined",
        "http, sqlx: replay",
        "http, sqlx: recorded",
    ],
];

async fn sides(
    service: &Service,
    [bare, joined, replay, recorded]: [&'static str; 4],
) -> Result<[Side; 4]> {
    let client = Arc::new(Client::of(service.address));
    let mut finished = Vec::with_capacity(FINISHED);
    for _ in 0..FINISHED {
        let order = Order::new();
        client.post("/joined", &order).await?.must_be(false)?;
        finished.push(order);
    }
    let place = |name, path| {
        let client = client.clone();
        Side::new(name, move || {
            let client = client.clone();
            async move {
                let placed = client.post(path, &Order::new()).await?;
                placed.must_be(false).map(drop)
            }
        })
    };
    Ok([
        place(bare, "/bare"),
        place(joined, "/joined"),
        again(replay, client.clone(), finished),
        place(recorded, "/recorded"),
    ])
}

/// Asks for finished orders again, one after the other.
fn again(name: &'static str, client: Arc<Client>, finished: Vec<Order>) -> Side {
    let (finished, next) = (Arc::new(finished), Arc::new(AtomicUsize::new(0)));
    Side::new(name, move || {
        let (client, finished) = (client.clone(), finished.clone());
        let place = next.fetch_add(1, Relaxed) % finished.len();
        async move {
            let told = client.post("/joined", &finished[place]).await?;
            told.must_be(true).map(drop)
        }
    })
}
