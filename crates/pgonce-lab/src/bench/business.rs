//! The business of the bench: one order with a natural key, and one message about it.

use std::borrow::Cow;
use std::sync::LazyLock;
use std::time::Duration;

use pgonce::{Done, Intent};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Result;

/// The tables that every side writes to, and the one that the usual recipe keeps its keys in.
pub(super) const TABLES: &str = "
create table orders (
    id        bigint generated always as identity primary key,
    number    text not null unique,
    customer  text not null,
    amount    bigint not null,
    placed_at timestamptz not null default clock_timestamp()
);
create table messages (
    id      bigint generated always as identity primary key,
    topic   text not null,
    payload jsonb not null
);
select pgonce.define_scope('orders.create', interval '7 days');
create table recipe (like pgonce.intent including storage, primary key (tenant, scope, key));
create function recipe_take(p_scope text, p_key text, p_fingerprint bytea)
returns table (status text, fingerprint bytea, answer jsonb) language plpgsql as $$
begin
    insert into recipe (tenant, scope, key, fingerprint, status, attempts, fence, first_at, expires_at)
    values ('', p_scope, p_key, p_fingerprint, 'processing', 1, 1, clock_timestamp(),
        clock_timestamp() + interval '7 days')
    on conflict do nothing;
    return query select r.status::text, r.fingerprint, r.answer from recipe r
        where r.tenant = '' and r.scope = p_scope and r.key = p_key for update;
end $$;
create function recipe_finish(p_scope text, p_key text, p_answer jsonb) returns void language plpgsql as $$
begin
    update recipe set status = 'succeeded', answer = p_answer, last_at = clock_timestamp()
    where tenant = '' and scope = p_scope and key = p_key and status = 'processing';
    if not found then
        raise exception 'nothing to finish';
    end if;
end $$;
";

pub(super) const SCOPE: &str = "orders.create";

pub(super) const INSERT_ORDER: &str =
    "insert into orders (number, customer, amount) values ($1, $2, $3) returning id";

pub(super) const INSERT_MESSAGE: &str = "insert into messages (topic, payload) values ($1, $2)";

/// The usual recipe around the effect, as it is published: functions in PL/pgSQL that insert the key
/// as processing, lock its row, and update it in the end.
pub(super) const RECIPE_TAKE: &str =
    "select status, fingerprint, answer from recipe_take($1, $2, $3)";
pub(super) const RECIPE_FINISH: &str = "select recipe_finish($1, $2, $3)";

/// The same by somebody who knows better than to use PL/pgSQL.
pub(super) const PLAIN_TAKE: &str = "insert into recipe \
    (tenant, scope, key, fingerprint, status, attempts, fence, first_at, expires_at) \
    values ('', $1, $2, $3, 'processing', 1, 1, clock_timestamp(), clock_timestamp() + interval '7 days') \
    on conflict do nothing";
pub(super) const PLAIN_LOOK: &str = "select status::text, fingerprint, answer from recipe \
    where tenant = '' and scope = $1 and key = $2 for update";
pub(super) const PLAIN_FINISH: &str = "update recipe set status = 'succeeded', answer = $3, last_at = clock_timestamp() \
    where tenant = '' and scope = $1 and key = $2 and status = 'processing'";

/// What any other language calls.
pub(super) const SQL_CLAIM: &str = "select outcome, fence, answer from pgonce.claim($1, $2, $3)";
pub(super) const SQL_SUCCEED: &str = "select pgonce.succeed($1, $2, $3, 1, $4)";

/// The unavoidable statements around the effect: one look-up, one insert of the row that remembers.
pub(super) const BOUND_LOOK: &str = "select status, fingerprint, answer from pgonce.intent \
    where tenant = '' and scope = $1 and key = $2";
pub(super) const BOUND_INSERT: &str = "insert into pgonce.intent \
    (fence, first_at, expires_at, attempts, status, tenant, scope, key, fingerprint, answer) \
    values (1, clock_timestamp(), clock_timestamp() + interval '7 days', 1, 'succeeded', '', $1, $2, $3, $4)";

/// Order, message and the row that remembers, by the plainest statement that writes all three.
pub(super) const BOUND_STATEMENT: &str = "with placed as (insert into orders (number, customer, amount) values ($1, $2, $3) returning id), \
    noted as (insert into messages (topic, payload) values ($4, $5)), \
    remembered as (insert into pgonce.intent \
    (fence, first_at, expires_at, attempts, status, tenant, scope, key, fingerprint, answer) \
    select 1, clock_timestamp(), clock_timestamp() + interval '7 days', 1, 'succeeded', '', $6, $1, $7, to_jsonb(p.*) from placed p) \
    select id from placed";

/// Order and message by one statement.
pub(super) const PLACE_ORDER: &str = "with placed as (insert into orders (number, customer, amount) values ($1, $2, $3) returning id), \
    noted as (insert into messages (topic, payload) values ($4, $5)) select id as order_id from placed";

pub(super) const LEASE: Duration = Duration::from_secs(30);

pub(super) const TOPIC: &str = "orders";

/// A message of about 200 bytes.
pub(super) static MESSAGE: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "type": "order.placed",
        "customer": "customer-4711",
        "amount": 4200,
        "currency": "EUR",
        "lines": [{"item": "book", "quantity": 2}, {"item": "pen", "quantity": 10}],
        "note": "leave it with the neighbours",
        "channel": "web"
    })
});

/// An order as a client sends it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    /// Its natural key, and the key of the intent.
    pub(super) number: String,
    pub(super) customer: Cow<'static, str>,
    pub(super) amount: i64,
}

impl Order {
    pub(super) fn numbered(number: String) -> Self {
        Self {
            number,
            customer: "customer-4711".into(),
            amount: 4200,
        }
    }

    /// With a new number that sorts by time.
    pub(super) fn new() -> Self {
        Self::numbered(pgonce::key::fresh())
    }
}

/// What the client is answered.
pub(super) fn answer(id: i64) -> Value {
    json!({"order": id})
}

/// The intent to place an order; `first` where the caller knows that nobody tried before.
pub(super) fn intent(order: &Order, first: bool) -> Result<Intent> {
    let intent = Intent::new(SCOPE, order.number.as_str(), order)?;
    Ok(if first { intent.known_first() } else { intent })
}

/// A side that only found old answers would look fast.
pub(super) fn must_be_new(done: &Done) -> Result<()> {
    if done.replayed() {
        Err("a new order was answered by a replay".into())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_message_has_about_200_bytes() {
        let length = super::MESSAGE.to_string().len();
        assert!((180..240).contains(&length), "{length}");
    }
}
