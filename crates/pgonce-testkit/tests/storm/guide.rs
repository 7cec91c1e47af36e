use pgonce_testkit::{Call, Outcome, shared, storm};
use sqlx::PgPool;
use tokio::sync::OnceCell;

// What you have: a function that makes an order, once per key.
async fn place_order(pool: &PgPool, key: &str, amount: i64) -> Result<i64, sqlx::Error> {
    sqlx::query("insert into orders (key, amount) values ($1, $2) on conflict (key) do nothing")
        .bind(key)
        .bind(amount)
        .execute(pool)
        .await?;
    sqlx::query_scalar("select id from orders where key = $1")
        .bind(key)
        .fetch_one(pool)
        .await
}

// What you add: one attempt, as the storm asks for it.
async fn attempt(call: Call) -> Outcome {
    static POOL: OnceCell<PgPool> = OnceCell::const_new();
    let connect = || PgPool::connect(&call.url);
    let pool = match POOL.get_or_try_init(connect).await {
        Ok(pool) => pool,
        Err(error) => return Outcome::Failed(error.to_string()),
    };
    let amount = call.payload["amount"].as_i64().unwrap();
    match place_order(pool, &call.intent, amount).await {
        Ok(id) => Outcome::Success(id.into()),
        Err(error) => Outcome::Unknown(error.to_string()),
    }
}

#[tokio::test]
async fn an_order_is_made_once_under_faults() {
    // A private server; any other PostgreSQL that you may break things in will do.
    let server = shared(None).await.unwrap();
    let database = server.create_database("shop").await.unwrap();
    let pool = PgPool::connect(&database.url()).await.unwrap();
    let table = "create table orders (
        id bigint generated always as identity, key text primary key, amount bigint)";
    sqlx::raw_sql(table).execute(&pool).await.unwrap();

    let report = storm(attempt)
        .effects("select key as intent, amount from orders")
        .kills(true)
        .run(&database.url())
        .await
        .unwrap();
    report.assert_exactly_once();
}
