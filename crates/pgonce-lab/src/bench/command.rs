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
    for (name, base, budget) in BUDGETS {
        let line = ratio(name, base);
        lines.push(match budget {
            Some(least) => line.within(Budget::AtLeast(least)),
            None => line,
        });
    }
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

/// What is compared, and the least that it is to be.
const BUDGETS: [(&str, &str, Option<f64>); 29] = [
    (
        "tokio-postgres: one statement",
        "tokio-postgres: bare",
        Some(1.3),
    ),
    ("sqlx: one statement", "sqlx: bare", Some(1.3)),
    (
        "tokio-postgres: one statement",
        "tokio-postgres: one-statement bound",
        None,
    ),
    (
        "tokio-postgres: one-statement bound",
        "tokio-postgres: bare",
        None,
    ),
    (
        "tokio-postgres: one statement, order only",
        "tokio-postgres: bare, order only",
        None,
    ),
    (
        "tokio-postgres: atomic",
        "tokio-postgres: bound",
        Some(0.95),
    ),
    (
        "tokio-postgres: optimistic",
        "tokio-postgres: optimistic bound",
        Some(0.95),
    ),
    (
        "tokio-postgres: atomic",
        "tokio-postgres: recipe",
        Some(1.1),
    ),
    ("sqlx: atomic", "sqlx: bound", Some(0.95)),
    ("sqlx: optimistic", "sqlx: optimistic bound", Some(0.95)),
    ("sqlx: atomic", "sqlx: recipe", Some(1.0)),
    (
        "tokio-postgres: SQL callers",
        "tokio-postgres: recipe",
        Some(1.0),
    ),
    ("tokio-postgres: bound", "tokio-postgres: bare", None),
    (
        "tokio-postgres: optimistic bound",
        "tokio-postgres: bare",
        None,
    ),
    ("tokio-postgres: SQL callers", "tokio-postgres: bare", None),
    ("tokio-postgres: recipe", "tokio-postgres: bare", None),
    ("tokio-postgres: atomic", "tokio-postgres: bare", None),
    ("tokio-postgres: optimistic", "tokio-postgres: bare", None),
    (
        "tokio-postgres: pipelined atomic",
        "tokio-postgres: pipelined bare",
        None,
    ),
    (
        "tokio-postgres: pipelined optimistic",
        "tokio-postgres: pipelined bare",
        None,
    ),
    (
        "tokio-postgres: pipelined atomic",
        "tokio-postgres: pipelined recipe",
        None,
    ),
    ("sqlx: bound", "sqlx: bare", None),
    ("sqlx: atomic", "sqlx: bare", None),
    ("sqlx: optimistic", "sqlx: bare", None),
    (FLOOR, "tokio-postgres: bare", None),
    (
        "tokio-postgres: atomic",
        "tokio-postgres: plain recipe",
        None,
    ),
    (RANDOM, "tokio-postgres: bare", None),
    ("tokio-postgres: leased", "tokio-postgres: bare", None),
    ("sqlx: leased", "sqlx: bare", None),
];

const NAMES: [&str; 26] = [
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
    "tokio-postgres: bound",
    "tokio-postgres: optimistic bound",
    "tokio-postgres: SQL callers",
    "tokio-postgres: one statement",
    "sqlx: one statement",
    "tokio-postgres: one statement, order only",
    "tokio-postgres: bare, order only",
    "sqlx: bound",
    "sqlx: optimistic bound",
    "tokio-postgres: one-statement bound",
];

/// Every way of placing an order, in the order of [`NAMES`].
pub(super) fn sides(one: &with_tokio_postgres::Shop, two: &with_sqlx::Shop) -> [Side; 26] {
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
        side!(16, one, bound, true),
        side!(17, one, bound, false),
        side!(18, one, by_sql),
        side!(19, one, executed, true),
        side!(20, two, executed),
        side!(21, one, executed, false),
        side!(22, one, bare_order),
        side!(23, two, bound, true),
        side!(24, two, bound, false),
        side!(25, one, statement_bound),
    ]
}
