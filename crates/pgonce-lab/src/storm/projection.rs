//! Read models in the storm: one for each trial, so that what it must be is known.

use pgonce::Once;
use pgonce::driver::Param;
use pgonce::inbox::Message;

use super::Result;
use super::attempt::ask;
use super::driver_ext::DriverExt;
use super::fixture::{Fixture, connect};
use super::path::Path;

/// A balance, and the function that keeps it.
pub(super) const SCHEMA: &str = "
create function apply_delta(p_into regclass, p_event pgonce.projected) returns void language plpgsql as $$
begin
    execute format('insert into %s as b values ($1, $2) on conflict (account) do update set amount = b.amount + excluded.amount', p_into)
        using p_event.entity, (p_event.payload ->> 'delta')::bigint;
end $$;
";

/// What the events below come to.
const RIGHT: &str = "a=5 b=2";

/// A projection of one trial, and its events.
pub(super) struct Model {
    name: String,
    table: String,
    rebuilds: bool,
    events: Vec<Message>,
}

impl Model {
    pub(super) async fn make<D: DriverExt>(
        fixture: &Fixture<D>,
        path: Path,
        key: &str,
    ) -> Result<Self> {
        let client = connect(&fixture.database.url()).await?;
        let table = key.replace('-', "_");
        client
            .batch_execute(&format!(
                "create table {table} (account text primary key, amount bigint not null);
                 select pgonce.define_projection('{key}', '{table}', 'apply_delta', 'marker', '{{{key}}}');"
            ))
            .await?;
        let mut events = Vec::new();
        for (account, delta) in [("a", 1), ("b", 2), ("a", 4)] {
            let payload = format!(r#"{{"delta": {delta}}}"#);
            let publish = "select pgonce.publish($1, 'moved', $2, $3::text::jsonb)::text";
            let id: String = client
                .query_one(publish, &[&key, &account, &payload])
                .await?
                .try_get(0)?;
            events.push(Message::new(id, payload).key(account).kind("moved"));
        }
        let model = Self {
            name: key.to_owned(),
            table,
            rebuilds: path == Path::InboxRebuild,
            events,
        };
        if model.rebuilds {
            // Wrong in every way: one amount, one row too many; and one event was never applied.
            for event in &model.events[..2] {
                model.project(&fixture.calm, event).await?;
            }
            let spoil = format!(
                "update {0} set amount = 1000 where account = 'a'; insert into {0} values ('c', 1)",
                model.table
            );
            client.batch_execute(&spoil).await?;
        }
        Ok(model)
    }

    /// Applies every event; or makes the projection anew, after which applying again finds it done.
    pub(super) async fn act<D: DriverExt>(&self, once: &Once<D>) -> pgonce::Result<()> {
        if self.rebuilds {
            once.inbox().rebuild(&self.name).await?;
        }
        for event in &self.events {
            self.project(once, event).await?;
        }
        Ok(())
    }

    async fn project<D: DriverExt>(&self, once: &Once<D>, event: &Message) -> pgonce::Result<()> {
        let mut batch = once.inbox().begin().await?;
        batch.lend("")?.project(&self.name, event).await?;
        batch.commit().await
    }

    /// It is what its events come to, and a comparison says so.
    pub(super) async fn check<D: DriverExt>(&self, calm: &Once<D>) -> Result<()> {
        let sql = format!(
            "select string_agg(account || '=' || amount, ' ' order by account) from {}",
            self.table
        );
        let there = ask(calm, &sql, &[] as &[Param<'_>]).await?;
        if there.as_deref() != Some(RIGHT) {
            return Err(format!("the projection is {there:?}, not {RIGHT:?}").into());
        }
        let verified = calm.inbox().verify(&self.name).await?;
        match verified.is_equal() && verified.pending == 0 {
            true => Ok(()),
            false => {
                Err(format!("the projection is not what its events make: {verified:?}").into())
            }
        }
    }
}
