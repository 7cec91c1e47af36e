//! Every way of placing an order with tokio-postgres.

use deadpool_postgres::{ClientWrapper, Manager, Object, Pool};
use futures_util::future::try_join;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::tokio_postgres::Query;
use pgonce::{Ack, Attempt, Claim, Fingerprint, Once};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, NoTls, Row, Statement};

use super::Result;
use super::business::{
    BOUND_INSERT, BOUND_LOOK, BOUND_STATEMENT, INSERT_MESSAGE, INSERT_ORDER, LEASE, MESSAGE, Order,
    PLACE_ORDER, PLAIN_FINISH, PLAIN_LOOK, PLAIN_TAKE, RECIPE_FINISH, RECIPE_TAKE, SCOPE,
    SQL_CLAIM, SQL_SUCCEED, TOPIC, answer, intent, must_be_new,
};

/// A pool, and pgonce over it.
#[derive(Debug, Clone)]
pub(super) struct Shop {
    pool: Pool,
    pub(super) once: Once<TokioPostgres>,
    /// Whose commands they are; empty: nobody's.
    pub(super) tenant: &'static str,
}

/// The two statements of the effect, prepared.
pub(super) struct Effect<'a> {
    client: &'a ClientWrapper,
    order: Statement,
    message: Statement,
}

impl<'a> Effect<'a> {
    pub(super) async fn prepare(client: &'a ClientWrapper) -> std::result::Result<Self, Error> {
        Ok(Self {
            client,
            order: client.prepare_cached(INSERT_ORDER).await?,
            message: client.prepare_cached(INSERT_MESSAGE).await?,
        })
    }

    async fn order(&self, order: &Order) -> std::result::Result<i64, Error> {
        let values: [&(dyn ToSql + Sync); 3] = [&order.number, &order.customer, &order.amount];
        self.client
            .query_one(&self.order, &values)
            .await?
            .try_get(0)
    }

    async fn message(&self) -> std::result::Result<(), Error> {
        self.client
            .execute(&self.message, &[&TOPIC, &*MESSAGE])
            .await
            .map(drop)
    }

    pub(super) async fn one_by_one(&self, order: &Order) -> std::result::Result<i64, Error> {
        let id = self.order(order).await?;
        self.message().await?;
        Ok(id)
    }

    async fn together(&self, order: &Order) -> std::result::Result<i64, Error> {
        try_join(self.order(order), self.message())
            .await
            .map(|(id, ())| id)
    }
}

impl Shop {
    pub(super) fn open(url: &str, connections: usize) -> Result<Self> {
        let pool = Pool::builder(Manager::new(url.parse()?, NoTls))
            .max_size(connections)
            .build()?;
        let once = Once::tokio_postgres(pool.clone());
        let tenant = "";
        Ok(Self { pool, once, tenant })
    }

    pub(super) async fn connection(&self) -> Result<Object> {
        Ok(self.pool.get().await?)
    }

    /// The bare transaction, each statement awaited.
    pub(super) async fn bare(self) -> Result<()> {
        let object = self.connection().await?;
        let effect = Effect::prepare(&object).await?;
        object.batch_execute("begin").await?;
        effect.one_by_one(&Order::new()).await?;
        object.batch_execute("commit").await?;
        Ok(())
    }

    /// The bare transaction in as few round trips as it can.
    pub(super) async fn bare_pipelined(self) -> Result<()> {
        let object = self.connection().await?;
        let effect = Effect::prepare(&object).await?;
        try_join(object.batch_execute("begin"), effect.order(&Order::new())).await?;
        try_join(effect.message(), object.batch_execute("commit")).await?;
        Ok(())
    }

    /// A new order with two statements more that do nothing.
    pub(super) async fn empty(self) -> Result<()> {
        self.empty_around(&Order::new()).await.map(drop)
    }

    /// The bare transaction with two statements more that do nothing, sent along as pgonce sends its
    /// claim and its success: what any protocol of two statements costs at least.
    pub(super) async fn empty_around(&self, order: &Order) -> Result<i64> {
        let object = self.connection().await?;
        let empty = object.prepare_cached("select $1::text").await?;
        let effect = Effect::prepare(&object).await?;
        let values: [&(dyn ToSql + Sync); 1] = [&order.number];
        let nothing = || object.query(&empty, &values);
        try_join(object.batch_execute("begin"), nothing()).await?;
        let id = effect.one_by_one(order).await?;
        try_join(nothing(), object.batch_execute("commit")).await?;
        Ok(id)
    }

    /// The bare transaction with the plain statements that no protocol can do without, sent along as pgonce sends
    /// its own: a look-up where it looks, and an insert of the row that remembers.
    pub(super) async fn bound(self, looks: bool) -> Result<()> {
        let object = self.connection().await?;
        let order = Order::new();
        let fingerprint = Fingerprint::of(&order)?;
        let look = object.prepare_cached(BOUND_LOOK).await?;
        let insert = object.prepare_cached(BOUND_INSERT).await?;
        let effect = Effect::prepare(&object).await?;
        let names: [&(dyn ToSql + Sync); 2] = [&SCOPE, &order.number];
        match looks {
            true => {
                let looked = object.query(&look, &names);
                try_join(object.batch_execute("begin"), looked).await?;
            }
            false => object.batch_execute("begin").await?,
        }
        let id = effect.one_by_one(&order).await?;
        let row: [&(dyn ToSql + Sync); 4] =
            [&SCOPE, &order.number, &fingerprint.as_bytes(), &answer(id)];
        let inserted = object.execute(&insert, &row);
        try_join(inserted, object.batch_execute("commit")).await?;
        Ok(())
    }

    /// `pgonce.claim` and `pgonce.succeed` as any other language calls them, each statement awaited.
    pub(super) async fn by_sql(self) -> Result<()> {
        let object = self.connection().await?;
        let order = Order::new();
        let fingerprint = Fingerprint::of(&order)?;
        let claim = object.prepare_cached(SQL_CLAIM).await?;
        let succeed = object.prepare_cached(SQL_SUCCEED).await?;
        object.batch_execute("begin").await?;
        let names: [&(dyn ToSql + Sync); 3] = [&SCOPE, &order.number, &fingerprint.as_bytes()];
        let claimed = object.query_one(&claim, &names).await?;
        if claimed.try_get::<_, &str>(0)? != "fresh" {
            return Err("a fresh claim was not given".into());
        }
        let id = Effect::prepare(&object).await?.one_by_one(&order).await?;
        let row: [&(dyn ToSql + Sync); 4] =
            [&SCOPE, &order.number, &fingerprint.as_bytes(), &answer(id)];
        object.execute(&succeed, &row).await?;
        Ok(object.batch_execute("commit").await?)
    }

    /// The order without its message, in a transaction.
    pub(super) async fn bare_order(self) -> Result<()> {
        let object = self.connection().await?;
        let effect = Effect::prepare(&object).await?;
        object.batch_execute("begin").await?;
        effect.order(&Order::new()).await?;
        Ok(object.batch_execute("commit").await?)
    }

    /// A command of one statement: the order alone, or order and message.
    pub(super) async fn executed(self, message: bool) -> Result<()> {
        let order = Order::new();
        let intent = intent(&order, true)?;
        let query = Query::new(if message { PLACE_ORDER } else { INSERT_ORDER })
            .bind(order.number, Type::TEXT)
            .bind(order.customer.into_owned(), Type::TEXT)
            .bind(order.amount, Type::INT8);
        let query = match message {
            true => query
                .bind(TOPIC, Type::TEXT)
                .bind(MESSAGE.clone(), Type::JSONB),
            false => query,
        };
        must_be_new(&self.once.execute(&intent, query).await?)
    }

    /// What no command of one statement can do without: order, message and the row that remembers.
    pub(super) async fn statement_bound(self) -> Result<()> {
        let object = self.connection().await?;
        let order = Order::new();
        let fingerprint = Fingerprint::of(&order)?;
        let statement = object.prepare_cached(BOUND_STATEMENT).await?;
        let values: [&(dyn ToSql + Sync); 7] = [
            &order.number,
            &order.customer,
            &order.amount,
            &TOPIC,
            &*MESSAGE,
            &SCOPE,
            &fingerprint.as_bytes(),
        ];
        object.query_one(&statement, &values).await?;
        Ok(())
    }

    /// The usual recipe without PL/pgSQL, each statement awaited.
    pub(super) async fn plain_recipe(self) -> Result<()> {
        let object = self.connection().await?;
        let recipe = Recipe::prepare(&object, PLAIN_TAKE, PLAIN_FINISH).await?;
        let look = object.prepare_cached(PLAIN_LOOK).await?;
        object.batch_execute("begin").await?;
        recipe.take().await?;
        let row = object
            .query_one(&look, &[&SCOPE, &recipe.order.number])
            .await?;
        must_be_ours(&row)?;
        let id = Effect::prepare(&object)
            .await?
            .one_by_one(&recipe.order)
            .await?;
        recipe.finish(id).await?;
        object.batch_execute("commit").await?;
        Ok(())
    }

    /// The usual recipe, each statement awaited.
    pub(super) async fn recipe(self) -> Result<()> {
        let object = self.connection().await?;
        let recipe = Recipe::prepare(&object, RECIPE_TAKE, RECIPE_FINISH).await?;
        object.batch_execute("begin").await?;
        must_be_ours(&first(recipe.take().await?)?)?;
        let id = Effect::prepare(&object)
            .await?
            .one_by_one(&recipe.order)
            .await?;
        recipe.finish(id).await?;
        object.batch_execute("commit").await?;
        Ok(())
    }

    /// The usual recipe in as few round trips as it can.
    pub(super) async fn recipe_pipelined(self) -> Result<()> {
        let object = self.connection().await?;
        let recipe = Recipe::prepare(&object, RECIPE_TAKE, RECIPE_FINISH).await?;
        let begun = try_join(object.batch_execute("begin"), recipe.take()).await?;
        must_be_ours(&first(begun.1)?)?;
        let id = Effect::prepare(&object)
            .await?
            .together(&recipe.order)
            .await?;
        try_join(recipe.finish(id), object.batch_execute("commit")).await?;
        Ok(())
    }

    /// An atomic command of pgonce, each statement awaited.
    pub(super) async fn atomic(self, order: Order, first: bool) -> Result<()> {
        let intent = intent(&order, first)?.tenant(self.tenant)?;
        let order = &order;
        let work = |mut attempt: Attempt<TokioPostgres>| async move {
            let id = Effect::prepare(attempt.conn())
                .await?
                .one_by_one(order)
                .await?;
            attempt.succeed(Ack::value(&answer(id))?).await
        };
        must_be_new(&self.once.run(&intent, work).await?)
    }

    /// An atomic command of pgonce, its effect in one round trip.
    pub(super) async fn atomic_pipelined(self, order: Order, first: bool) -> Result<()> {
        let (intent, order) = (intent(&order, first)?, &order);
        let work = |mut attempt: Attempt<TokioPostgres>| async move {
            let id = Effect::prepare(attempt.conn())
                .await?
                .together(order)
                .await?;
            attempt.succeed(Ack::value(&answer(id))?).await
        };
        must_be_new(&self.once.run(&intent, work).await?)
    }

    /// A leased command of pgonce: a committed claim, then the effect under its fence.
    pub(super) async fn leased(self) -> Result<()> {
        let order = Order::new();
        let intent = intent(&order, false)?.tenant(self.tenant)?;
        let Claim::Run(lease) = self.once.lease(&intent, LEASE).await? else {
            return Err("a fresh lease was not given".into());
        };
        let mut attempt = lease.begin().await?;
        let id = Effect::prepare(attempt.conn())
            .await?
            .one_by_one(&order)
            .await?;
        must_be_new(&attempt.succeed(Ack::value(&answer(id))?).await?)
    }
}

/// The usual recipe around an effect.
struct Recipe<'a> {
    client: &'a ClientWrapper,
    order: Order,
    fingerprint: Fingerprint,
    take: Statement,
    finish: Statement,
}

impl<'a> Recipe<'a> {
    async fn prepare(client: &'a ClientWrapper, take: &str, finish: &str) -> Result<Self> {
        let order = Order::new();
        Ok(Self {
            client,
            fingerprint: Fingerprint::of(&order)?,
            order,
            take: client.prepare_cached(take).await?,
            finish: client.prepare_cached(finish).await?,
        })
    }

    async fn take(&self) -> std::result::Result<Vec<Row>, Error> {
        let values: [&(dyn ToSql + Sync); 3] =
            [&SCOPE, &self.order.number, &self.fingerprint.as_bytes()];
        self.client.query(&self.take, &values).await
    }

    async fn finish(&self, id: i64) -> std::result::Result<(), Error> {
        let values: [&(dyn ToSql + Sync); 3] = [&SCOPE, &self.order.number, &answer(id)];
        self.client.execute(&self.finish, &values).await.map(drop)
    }
}

fn first(rows: Vec<Row>) -> Result<Row> {
    let row = rows.into_iter().next();
    Ok(row.ok_or("the recipe found nothing")?)
}

fn must_be_ours(row: &Row) -> Result<()> {
    match row.try_get(0)? {
        "processing" => Ok(()),
        other => Err(format!("the recipe found its key {other}").into()),
    }
}
