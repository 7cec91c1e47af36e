//! What least privilege and limits cost: the same commands by a superuser, whom nothing is checked for, and by a login that has
//! the part of an application and a contract with limits of its own.

use std::sync::atomic::{AtomicUsize, Ordering};

use pgonce::Claim;

use super::Result;
use super::business::{Order, intent};
use super::report::{Budget, Line, Unit};
use super::rounds::{Plan, Side};
use super::server::{Server, connect};
use super::with_tokio_postgres::Shop;

const ROLE: &str = "pgonce_bench_app";

const GRANT: &str = "
    create role pgonce_bench_app login;
    select pgonce.grant_to('pgonce_bench_app', 'app');
    grant all on all tables in schema public to pgonce_bench_app;
    grant all on all sequences in schema public to pgonce_bench_app";

const LIMIT: &str =
    "select pgonce.define_scope('orders.create', interval '7 days', p_max_answer => 65536)";

/// A command, by whom nothing is checked for and by whom everything is.
const PAIRS: [[&str; 2]; 4] = [
    ["superuser: atomic", "granted role and limits: atomic"],
    [
        "superuser: optimistic",
        "granted role and limits: optimistic",
    ],
    ["superuser: leased", "granted role and limits: leased"],
    ["superuser: replay", "granted role and limits: replay"],
];

/// Commands that were done before, and are asked for again and again.
const DONE: usize = 500;

/// A duplicate of one of them.
async fn replayed(shop: Shop, number: usize) -> Result<()> {
    let order = Order::numbered(format!("done-{}", number % DONE));
    match shop.once.claim(&intent(&order, false)?).await? {
        Claim::Replay(_) => Ok(()),
        _ => Err("an existing intent was not replayed".into()),
    }
}

pub(super) async fn measure(server: &Server, plan: &mut Plan) -> Result<Vec<Line>> {
    if !server.is_private() {
        // How a new role logs in there is not known.
        return Ok(Vec::new());
    }
    let plain = server.database("superuser").await?;
    let granted = server.database("granted").await?;
    let admin = connect(&granted).await?;
    admin.batch_execute(GRANT).await?;
    admin.batch_execute(LIMIT).await?;
    let login = granted.replace("postgres@", &format!("{ROLE}@"));
    let shops = [
        Shop::open(&plain, plan.connections)?,
        Shop::open(&login, plan.connections)?,
    ];
    let mut sides = Vec::new();
    for (at, shop) in shops.iter().enumerate() {
        for number in 0..DONE {
            let order = Order::numbered(format!("done-{number}"));
            shop.clone().atomic(order, false).await?;
        }
        let (one, two, three) = (shop.clone(), shop.clone(), shop.clone());
        let (four, next) = (shop.clone(), AtomicUsize::new(0));
        sides.push(Side::new(PAIRS[0][at], move || {
            one.clone().atomic(Order::new(), false)
        }));
        sides.push(Side::new(PAIRS[1][at], move || {
            two.clone().atomic(Order::new(), true)
        }));
        sides.push(Side::new(PAIRS[2][at], move || three.clone().leased()));
        sides.push(Side::new(PAIRS[3][at], move || {
            replayed(four.clone(), next.fetch_add(1, Ordering::Relaxed))
        }));
    }
    let measured = plan.rates(&sides).await?;
    drop((sides, shops, admin));
    server.remove(&plain).await?;
    server.remove(&granted).await?;
    let admin = connect(&server.address()).await?;
    admin.batch_execute(&format!("drop role {ROLE}")).await?;
    let mut lines = Vec::new();
    for [base, name] in PAIRS {
        let ratio = measured.ratio(name, base);
        let line = Line::new(format!("{name} ÷ {base}"), ratio, Unit::Ratio);
        lines.push(line.within(Budget::AtLeast(0.98)));
    }
    let names = PAIRS.into_iter().flatten();
    lines.extend(names.map(|name| Line::new(name, measured.median(name), Unit::PerSecond)));
    Ok(lines)
}
