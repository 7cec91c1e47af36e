//! The shop's rows.

use pgonce::Result;
use pgonce::unique::Inserted;
use sqlx::{PgConnection, PgPool};

use crate::NewOrder;

/// The unique constraint decides; a row that was there before is neither locked nor written.
pub(crate) async fn insert_or_fetch(
    conn: &mut PgConnection,
    tenant: &str,
    order: &NewOrder,
) -> Result<Inserted<(i64, NewOrder)>> {
    let made: Option<i64> = sqlx::query_scalar(
        "insert into orders (tenant, customer, reference, item, amount) values ($1, $2, $3, $4, $5)
         on conflict on constraint one_order_per_reference do nothing returning id",
    )
    .bind(tenant)
    .bind(&order.customer)
    .bind(&order.reference)
    .bind(&order.item)
    .bind(order.amount)
    .fetch_optional(&mut *conn)
    .await?;
    if let Some(id) = made {
        return Ok(Inserted::New((id, order.clone())));
    }
    let (id, item, amount) = sqlx::query_as(
        "select id, item, amount from orders where tenant = $1 and customer = $2 and reference = $3",
    )
    .bind(tenant)
    .bind(&order.customer)
    .bind(&order.reference)
    .fetch_one(conn)
    .await?;
    Ok(Inserted::Existing((
        id,
        NewOrder {
            item,
            amount,
            ..order.clone()
        },
    )))
}

pub(crate) async fn find(pool: &PgPool, tenant: &str, id: i64) -> Result<Option<NewOrder>> {
    let row: Option<(String, String, String, i64)> = sqlx::query_as(
        "select customer, reference, item, amount from orders where tenant = $1 and id = $2",
    )
    .bind(tenant)
    .bind(id)
    .fetch_optional(pool)
    .await?;
    Ok(row.map(|(customer, reference, item, amount)| NewOrder {
        customer,
        reference,
        item,
        amount,
    }))
}
