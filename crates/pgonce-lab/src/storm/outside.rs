//! Paths that end outside of the database, or after their holder vanished: a provider with a book of its own, the operator
//! who reads it, and recovery.

use pgonce::driver::Param;
use pgonce::external::{CallError, Effect, Found, Provider, Reply};
use serde_json::{Value, json};

use super::attempt::Case;
use super::driver_ext::{DriverExt, Mark};
use super::path::Path;

/// Calls are looked up at once, and what recovery asks belongs to nobody who may do anything else.
pub(super) const SCHEMA: &str = "
select pgonce.define_provider('*', p_look_after => '0', p_backoff => '1 ms', p_max_backoff => '10 ms');
select pgonce.define_provider('external-keyed', p_keys_for => '1 day');
create role storm_prober;
create function storm_probe(p_scope text, p_key text, p_tenant text) returns table (answer jsonb, ref_type text, ref_id text)
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$ select jsonb_build_object('by', e.attempt), null::text, null::text from public.effect e where e.intent = p_key $$;
alter function storm_probe(text, text, text) owner to storm_prober;
grant select on effect to storm_prober;
select pgonce.define_scope('storm.recovery', '1 day', p_probe => 'public.storm_probe');
";

/// A provider whose book is the table of effects. With keys it makes each effect once; without, one for each request.
pub(super) struct Bank<'a, D: DriverExt> {
    case: &'a Case<D>,
    mark: &'a Mark,
    name: String,
    loses: bool,
}

impl<'a, D: DriverExt> Bank<'a, D> {
    pub(super) fn new(case: &'a Case<D>, mark: &'a Mark, loses: bool) -> Self {
        let name = match case.path {
            Path::ExternalKeyed => case.path.name(),
            // A reconciler looks up what is due at its provider: here the calls of one trial.
            _ => case.key.clone(),
        };
        Self {
            case,
            mark,
            name,
            loses,
        }
    }
}

impl<D: DriverExt> Provider for Bank<'_, D> {
    fn name(&self) -> &str {
        &self.name
    }

    async fn call(&self, _: &Effect, _: &Value) -> Result<Reply, CallError> {
        let by = match self.case.path {
            Path::ExternalKeyed => self.case.call_outside(self.mark).await?,
            _ => {
                let attempt = self.mark.attempt.to_string();
                let params = [&self.mark.intent, &attempt, &self.mark.payload];
                let params = params.map(|text| Param::Text(Some(text)));
                let charge = "insert into effect (intent, attempt, payload) \
                    values ($1, $2::text::bigint, $3::text::jsonb) returning attempt::text";
                self.case.ask(charge, &params).await?;
                self.mark.attempt
            }
        };
        match self.loses {
            true => Err(CallError::unknown("the answer was lost")),
            false => Ok(Reply::new(&json!({ "by": by }))?),
        }
    }

    async fn look_up(&self, _: &Effect) -> Result<Found, Box<dyn std::error::Error + Send + Sync>> {
        let book = "select attempt::text from effect where intent = $1 order by at limit 1";
        let params = [Param::Text(Some(&self.mark.intent))];
        let by = self.case.ask(book, &params).await?;
        Ok(match by.and_then(|by| by.parse::<i64>().ok()) {
            Some(by) => Found::Confirmed(Reply::new(&json!({ "by": by }))?),
            None => Found::Unknown,
        })
    }
}

/// An operator who knows that the sender is dead: what is not in the provider's book did not happen, and may be sent.
pub(super) async fn operate<D: DriverExt>(case: &Case<D>) {
    let scope = case.path.scope();
    let params = [Param::Text(Some(&scope)), Param::Text(Some(&case.key))];
    let settle = "select pgonce.external_settle(c.effect_key, 'resend', 'it is not in the book', true) \
        from pgonce.external_call c where c.scope = $1 and c.key = $2 and c.status in ('sent', 'unknown') \
        and not exists (select from effect e where e.intent = $2)";
    // Where that fails, the client comes back, and so does the operator.
    if let Ok(Some(_)) = case.ask(settle, &params).await {
        case.history.saw("operator");
    }
}

/// What a recovery that was cut off holds is free after its time, which is now; and another decides.
pub(super) async fn recover<D: DriverExt>(case: &Case<D>) -> pgonce::Result<()> {
    let scope = case.path.scope();
    let params = [Param::Text(Some(&scope)), Param::Text(Some(&case.key))];
    let free = "update pgonce.intent set lease_until = least(lease_until, pgonce.now()), last_at = last_at - interval '1 hour' \
        where scope = $1 and key = $2 and status = 'processing' and owner like 'recovery%' returning 'freed'";
    case.ask(free, &params).await?;
    case.calm
        .recovery()
        .concurrency(1)
        .run_once()
        .await
        .map(drop)
}
