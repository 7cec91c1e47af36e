//! Every way of placing an order with sqlx.

use pgonce::driver::sqlx::Sqlx;
use pgonce::{Ack, Attempt, Claim, Fingerprint, Once};
use sqlx::postgres::{PgConnection, PgPool, PgPoolOptions};

use super::Result;
use super::business::{
    BOUND_INSERT, BOUND_LOOK, INSERT_MESSAGE, INSERT_ORDER, LEASE, MESSAGE, Order, PLACE_ORDER,
    RECIPE_FINISH, RECIPE_TAKE, SCOPE, TOPIC, answer, intent, must_be_new,
};

/// A pool, and pgonce over it.
#[derive(Debug, Clone)]
pub(super) struct Shop {
    pub(super) pool: PgPool,
    pub(super) once: Once<Sqlx>,
}

impl Shop {
    /// The pool does not ping before use: that would add a round trip to every side.
    pub(super) fn open(url: &str, connections: usize) -> Result<Self> {
        let pool = PgPoolOptions::new()
            .max_connections(u32::try_from(connections)?)
            .test_before_acquire(false)
            .connect_lazy(url)?;
        let once = Once::sqlx(pool.clone());
        Ok(Self { pool, once })
    }

    /// The bare transaction.
    pub(super) async fn bare(self) -> Result<()> {
        let mut tx = self.pool.begin().await?;
        effect(&mut tx, &Order::new()).await?;
        Ok(tx.commit().await?)
    }

    /// A command of one statement: order and message.
    pub(super) async fn executed(self) -> Result<()> {
        let order = Order::new();
        let intent = intent(&order, true)?;
        let query = sqlx::query(PLACE_ORDER)
            .bind(order.number)
            .bind(order.customer.into_owned())
            .bind(order.amount)
            .bind(TOPIC)
            .bind(MESSAGE.clone());
        must_be_new(&self.once.execute(&intent, query).await?)
    }

    /// The bare transaction with the plain statements that no protocol can do without: a look-up where it looks, and an
    /// insert of the row that remembers.
    pub(super) async fn bound(self, looks: bool) -> Result<()> {
        let order = Order::new();
        let fingerprint = Fingerprint::of(&order)?;
        let mut tx = self.pool.begin().await?;
        if looks {
            let look = sqlx::query(BOUND_LOOK).bind(SCOPE).bind(&order.number);
            look.fetch_optional(&mut *tx).await?;
        }
        let id = effect(&mut tx, &order).await?;
        sqlx::query(BOUND_INSERT)
            .bind(SCOPE)
            .bind(&order.number)
            .bind(fingerprint.as_bytes())
            .bind(answer(id))
            .execute(&mut *tx)
            .await?;
        Ok(tx.commit().await?)
    }

    /// The usual recipe by hand.
    pub(super) async fn recipe(self) -> Result<()> {
        let order = Order::new();
        let fingerprint = Fingerprint::of(&order)?;
        let mut tx = self.pool.begin().await?;
        let (status, ..): (String, Vec<u8>, Option<serde_json::Value>) =
            sqlx::query_as(RECIPE_TAKE)
                .bind(SCOPE)
                .bind(&order.number)
                .bind(fingerprint.as_bytes())
                .fetch_one(&mut *tx)
                .await?;
        if status != "processing" {
            return Err(format!("the recipe found its key {status}").into());
        }
        let id = effect(&mut tx, &order).await?;
        sqlx::query(RECIPE_FINISH)
            .bind(SCOPE)
            .bind(&order.number)
            .bind(answer(id))
            .execute(&mut *tx)
            .await?;
        Ok(tx.commit().await?)
    }

    /// An atomic command of pgonce.
    pub(super) async fn atomic(self, order: Order, first: bool) -> Result<()> {
        let (intent, order) = (intent(&order, first)?, &order);
        let work = |mut attempt: Attempt<Sqlx>| async move {
            let id = effect(attempt.conn(), order).await?;
            attempt.succeed(Ack::value(&answer(id))?).await
        };
        must_be_new(&self.once.run(&intent, work).await?)
    }

    /// A leased command of pgonce: a committed claim, then the effect under its fence.
    pub(super) async fn leased(self) -> Result<()> {
        let order = Order::new();
        let Claim::Run(lease) = self.once.lease(&intent(&order, false)?, LEASE).await? else {
            return Err("a fresh lease was not given".into());
        };
        let mut attempt = lease.begin().await?;
        let id = effect(attempt.conn(), &order).await?;
        must_be_new(&attempt.succeed(Ack::value(&answer(id))?).await?)
    }
}

pub(super) async fn effect(
    conn: &mut PgConnection,
    order: &Order,
) -> std::result::Result<i64, sqlx::Error> {
    let id = sqlx::query_scalar(INSERT_ORDER)
        .bind(&order.number)
        .bind(&*order.customer)
        .bind(order.amount)
        .fetch_one(&mut *conn)
        .await?;
    sqlx::query(INSERT_MESSAGE)
        .bind(TOPIC)
        .bind(&*MESSAGE)
        .execute(conn)
        .await?;
    Ok(id)
}
