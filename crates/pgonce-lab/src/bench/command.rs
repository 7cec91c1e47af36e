//! Commands per second: the bare transaction, the usual recipe, and pgonce, with both drivers.

use uuid::Uuid;

use super::Result;
use super::business::Order;
use super::report::{Budget, Line, Unit};
use super::rounds::{Plan, Side};
use super::server::Server;
use super::{with_sqlx, with_tokio_postgres};

pub(super) async fn measure(server: &Server, plan: &mut Plan) -> Result<Vec<Line>> {
    let url = server.database("command").await?;
    let one = with_tokio_postgres::Shop::open(&url, plan.connections)?;
    let two = with_sqlx::Shop::open(&url, plan.connections)?;
    // Random keys in a database of their own: they would fray the indexes of the others.
    let apart = server.database("random").await?;
    let shop = with_tokio_postgres::Shop::open(&apart, plan.connections)?;
    let mut sides = sides(&one, &two).to_vec();
    sides.push(Side::new(RANDOM, move || {
        shop.clone()
            .atomic(Order::numbered(Uuid::new_v4().to_string()), false)
    }));
    let measured = plan.rates(&sides).await?;
    drop((sides, one, two));
    server.remove(&url).await?;
    server.remove(&apart).await?;

    let ratio = |name: &str, base: &str| {
        Line::new(
            format!("{name} ÷ {base}"),
            measured.ratio(name, base),
            Unit::Ratio,
        )
    };
    let mut lines = Vec::new();
    for (style, prefix) in [
        ("tokio-postgres", ""),
        ("tokio-postgres", "pipelined "),
        ("sqlx", ""),
    ] {
        let name = |what: &str| format!("{style}: {prefix}{what}");
        lines.extend([
            ratio(&name("atomic"), &name("bare")).within(Budget::AtLeast(0.70)),
            ratio(&name("optimistic"), &name("bare")).within(Budget::AtLeast(0.80)),
            ratio(&name("atomic"), &name("recipe")).within(Budget::AtLeast(1.5)),
        ]);
    }
    lines.extend([
        ratio(FLOOR, "tokio-postgres: bare"),
        ratio("tokio-postgres: atomic", FLOOR),
        ratio("tokio-postgres: optimistic", FLOOR),
        ratio("tokio-postgres: atomic", "tokio-postgres: plain recipe"),
        ratio(RANDOM, "tokio-postgres: bare"),
        ratio("tokio-postgres: leased", "tokio-postgres: bare"),
        ratio("sqlx: leased", "sqlx: bare"),
    ]);
    lines.extend(
        NAMES
            .into_iter()
            .chain([RANDOM])
            .map(|name| Line::new(name, measured.median(name), Unit::PerSecond)),
    );
    Ok(lines)
}

/// Does nothing but one side.
pub(super) async fn profile(server: &Server, plan: &mut Plan, name: &str) -> Result<Vec<Line>> {
    let url = server.database("profile").await?;
    let one = with_tokio_postgres::Shop::open(&url, plan.connections)?;
    let two = with_sqlx::Shop::open(&url, plan.connections)?;
    let side = sides(&one, &two).into_iter().find(|side| side.name == name);
    let side = side.ok_or_else(|| {
        format!(
            "no side is named {name:?}; there are: {}",
            NAMES.join(" | ")
        )
    })?;
    let measured = plan.rates(&[side]).await?;
    drop((one, two));
    server.remove(&url).await?;
    Ok(vec![Line::new(
        name,
        measured.median(name),
        Unit::PerSecond,
    )])
}

/// The least that two statements more can cost.
const FLOOR: &str = "tokio-postgres: two empty statements";

const RANDOM: &str = "tokio-postgres: atomic, random keys";

const NAMES: [&str; 16] = [
    "tokio-postgres: bare",
    "tokio-postgres: recipe",
    "tokio-postgres: atomic",
    "tokio-postgres: optimistic",
    "tokio-postgres: leased",
    "tokio-postgres: pipelined bare",
    "tokio-postgres: pipelined recipe",
    "tokio-postgres: pipelined atomic",
    "tokio-postgres: pipelined optimistic",
    "sqlx: bare",
    "sqlx: recipe",
    "sqlx: atomic",
    "sqlx: optimistic",
    "sqlx: leased",
    "tokio-postgres: plain recipe",
    FLOOR,
];

/// Every way of placing an order, in the order of [`NAMES`].
pub(super) fn sides(one: &with_tokio_postgres::Shop, two: &with_sqlx::Shop) -> [Side; 16] {
    // Each call of a side starts from the shop and gives a future of its own.
    macro_rules! side {
        ($index:literal, $shop:ident, $run:ident $(, $argument:expr)*) => {{
            let shop = $shop.clone();
            Side::new(NAMES[$index], move || shop.clone().$run($($argument),*))
        }};
    }
    [
        side!(0, one, bare),
        side!(1, one, recipe),
        side!(2, one, atomic, Order::new(), false),
        side!(3, one, atomic, Order::new(), true),
        side!(4, one, leased),
        side!(5, one, bare_pipelined),
        side!(6, one, recipe_pipelined),
        side!(7, one, atomic_pipelined, Order::new(), false),
        side!(8, one, atomic_pipelined, Order::new(), true),
        side!(9, two, bare),
        side!(10, two, recipe),
        side!(11, two, atomic, Order::new(), false),
        side!(12, two, atomic, Order::new(), true),
        side!(13, two, leased),
        side!(14, one, plain_recipe),
        side!(15, one, empty),
    ]
}
