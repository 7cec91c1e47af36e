//! What least privilege, limits and the isolation of tenants cost: the same commands by a login that owns everything, as services often
//! have it, by one that has the part of an application and a contract with limits of its own, and by such a login that is bound to a
//! tenant. Not by a superuser: the server checks nothing for one, not even who may call `current_setting`.

use std::sync::atomic::{AtomicUsize, Ordering};

use pgonce::Claim;

use super::Result;
use super::business::{Order, intent};
use super::report::{Budget, Line, Unit};
use super::rounds::{Plan, Side};
use super::server::{Server, connect, install};
use super::with_tokio_postgres::Shop;

const ROLE: &str = "pgonce_bench_app";
const OWNER: &str = "pgonce_bench_owner";
const TENANT: &str = "acme";

const ROLES: &str = "create role pgonce_bench_app login; create role pgonce_bench_owner login";

const GRANT: &str = "
    select pgonce.grant_to('pgonce_bench_app', 'app');
    grant all on all tables in schema public to pgonce_bench_app;
    grant all on all sequences in schema public to pgonce_bench_app";

const LIMIT: &str =
    "select pgonce.define_scope('orders.create', interval '7 days', p_max_answer => 65536)";

/// The same contract without them.
const CONTRACT: &str = "select pgonce.define_scope('orders.create', interval '7 days')";

/// Installed by an ordinary owner: only such a one can isolate tenants.
const OWN: &str = "
    drop schema pgonce cascade;
    create schema pgonce authorization pgonce_bench_owner";

const OWN_SHOP: &str = "
    grant all on all tables in schema public to pgonce_bench_owner;
    grant all on all sequences in schema public to pgonce_bench_owner";

const ISOLATE: &str =
    "select pgonce.bind_tenant('pgonce_bench_app', 'acme'), pgonce.isolate_tenants(true)";

/// A command, by the owner, by whom everything is checked for, and by one who is bound to a tenant beside it.
const SIDES: [[&str; 3]; 4] = [
    [
        "owner: atomic",
        "granted role and limits: atomic",
        "isolated tenant: atomic",
    ],
    [
        "owner: optimistic",
        "granted role and limits: optimistic",
        "isolated tenant: optimistic",
    ],
    [
        "owner: leased",
        "granted role and limits: leased",
        "isolated tenant: leased",
    ],
    [
        "owner: replay",
        "granted role and limits: replay",
        "isolated tenant: replay",
    ],
];

/// Commands that were done before, and are asked for again and again.
const DONE: usize = 500;

/// A duplicate of one of them.
async fn replayed(shop: Shop, number: usize) -> Result<()> {
    let order = Order::numbered(format!("done-{}", number % DONE));
    let intent = intent(&order, false)?.tenant(shop.tenant)?;
    match shop.once.claim(&intent).await? {
        Claim::Replay(_) => Ok(()),
        _ => Err("an existing intent was not replayed".into()),
    }
}

pub(super) async fn measure(server: &Server, plan: &mut Plan) -> Result<Vec<Line>> {
    if !server.is_private() {
        // How a new role logs in there is not known.
        return Ok(Vec::new());
    }
    connect(&server.address())
        .await?
        .batch_execute(ROLES)
        .await?;
    let user = |url: &str, name: &str| url.replace("postgres@", &format!("{name}@"));
    let owned = server.database("owned").await?;
    for sql in [OWN, OWN_SHOP] {
        connect(&owned).await?.batch_execute(sql).await?;
    }
    install(&user(&owned, OWNER)).await?;
    let contract = connect(&user(&owned, OWNER)).await?;
    contract.batch_execute(CONTRACT).await?;
    drop(contract);
    let granted = server.database("granted").await?;
    for sql in [GRANT, LIMIT] {
        connect(&granted).await?.batch_execute(sql).await?;
    }
    let isolated = server.database("isolated").await?;
    connect(&isolated).await?.batch_execute(OWN).await?;
    install(&user(&isolated, OWNER)).await?;
    for sql in [GRANT, LIMIT] {
        connect(&isolated).await?.batch_execute(sql).await?;
    }
    let owner = connect(&user(&isolated, OWNER)).await?;
    owner.batch_execute(ISOLATE).await?;
    drop(owner);
    let mut shops = [
        Shop::open(&user(&owned, OWNER), plan.connections)?,
        Shop::open(&user(&granted, ROLE), plan.connections)?,
        Shop::open(&user(&isolated, ROLE), plan.connections)?,
    ];
    shops[2].tenant = TENANT;
    let mut sides = Vec::new();
    for (at, shop) in shops.iter().enumerate() {
        for number in 0..DONE {
            let order = Order::numbered(format!("done-{number}"));
            shop.clone().atomic(order, false).await?;
        }
        let (one, two, three) = (shop.clone(), shop.clone(), shop.clone());
        let (four, next) = (shop.clone(), AtomicUsize::new(0));
        sides.push(Side::new(SIDES[0][at], move || {
            one.clone().atomic(Order::new(), false)
        }));
        sides.push(Side::new(SIDES[1][at], move || {
            two.clone().atomic(Order::new(), true)
        }));
        sides.push(Side::new(SIDES[2][at], move || three.clone().leased()));
        sides.push(Side::new(SIDES[3][at], move || {
            replayed(four.clone(), next.fetch_add(1, Ordering::Relaxed))
        }));
    }
    let measured = plan.rates(&sides).await?;
    drop((sides, shops));
    for url in [&owned, &granted, &isolated] {
        server.remove(url).await?;
    }
    let admin = connect(&server.address()).await?;
    admin
        .batch_execute(&format!("drop role {ROLE}; drop role {OWNER}"))
        .await?;
    let ratio = |name: &str, base: &str| {
        Line::new(
            format!("{name} ÷ {base}"),
            measured.ratio(name, base),
            Unit::Ratio,
        )
    };
    let mut lines = Vec::new();
    for [base, name, _] in SIDES {
        lines.push(ratio(name, base).within(Budget::AtLeast(0.98)));
    }
    // An option: it costs those who ask for it.
    lines.extend(SIDES.map(|[_, base, name]| ratio(name, base)));
    let names = SIDES.into_iter().flatten();
    lines.extend(names.map(|name| Line::new(name, measured.median(name), Unit::PerSecond)));
    Ok(lines)
}
