//! Commands that are one statement: claim, effect and acknowledgement in one round trip.

use serde_json::Value;

use crate::ack::{Ack, Done};
use crate::attempt::Attempt;
use crate::call::{Row, Schema, release_unless_lost, uncertain_if_lost, unreadable};
use crate::claim::{Claim, Outcome};
use crate::counts::Suppression;
use crate::driver::{Driver, Effect, IntoEffect};
use crate::error::{Error, ErrorDetail, Result};
use crate::intent::Intent;
use crate::once::{CLAIM_FAST, Once, fast_args};
use crate::part::Parts;
use crate::record::SMALL_ANSWER_BYTES;
use crate::run::{Atomic, Ended, Mode};
use crate::trace::{database_span, step};

/// What a statement must begin with to be a part of another one.
const KINDS: [&str; 6] = ["insert", "update", "delete", "merge", "select", "values"];

impl<D: Driver> Once<D> {
    /// Makes one statement happen once, in one round trip and without a transaction around it: the
    /// row that it returns is the answer.
    ///
    /// The statement becomes a part of one that also claims the intent and records its success, so
    /// that all of it commits or none. It is an insert, update, delete or merge with `returning`, or a
    /// select that calls a function, and returns exactly one row; `22023` and `21000` say that it
    /// returned none or several, and then nothing happened. Its `with` may change more: `with placed as
    /// (insert ... returning id), noted as (insert ...) select id from placed`; names that begin with `pgonce_`
    /// are reserved there. Events go along where it returns `pgonce.publish(...)` among its columns.
    ///
    /// A look-up goes first, so that a duplicate gets its answer without an error on the server; not for an
    /// intent that is [known to be the first](Intent::known_first). Duplicates, failures and lost replies are
    /// dealt with as by [`Once::run`]. Where there is a record of a transient failure, behind a
    /// pooler, and with a stricter [`Isolation`](crate::Isolation), the same is done in a transaction.
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlx")]
    /// # async fn example(once: pgonce::sqlx::Once, intent: pgonce::Intent) -> Result<(), pgonce::Error> {
    /// #[derive(serde::Deserialize)]
    /// struct Order {
    ///     id: i64,
    /// }
    ///
    /// let insert = sqlx::query("insert into orders (item, qty) values ($1, $2) returning id")
    ///     .bind("book")
    ///     .bind(2);
    /// let order: Order = once.execute(&intent, insert).await?.into_answer()?;
    /// # let _ = order.id;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// With tokio-postgres the values carry their types:
    ///
    /// ```no_run
    /// # #[cfg(feature = "tokio-postgres")]
    /// # async fn example(once: pgonce::tokio_postgres::Once, intent: pgonce::Intent) -> Result<(), pgonce::Error> {
    /// use pgonce::tokio_postgres::Query;
    /// use tokio_postgres::types::Type;
    ///
    /// let insert = Query::new("insert into orders (item, qty) values ($1, $2) returning id")
    ///     .bind("book", Type::TEXT)
    ///     .bind(2, Type::INT4);
    /// let done = once.execute::<serde_json::Value>(&intent, insert).await?;
    /// # let _ = done;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn execute<T>(
        &self,
        intent: &Intent,
        statement: impl IntoEffect<D::Session>,
    ) -> Result<Done<T>> {
        let effect = statement.into_effect()?;
        let parts = Parts::of(effect.sql());
        if let Some(name) = parts.reserved {
            return Err(Error::Invalid(ErrorDetail::new(
                "22023",
                format!("a command of one statement cannot define {name:?} in its with"),
                "Choose another name: those that begin with pgonce_ are reserved.",
            )));
        }
        parts.kind(&KINDS).map_err(|first| {
            Error::Invalid(ErrorDetail::new(
                "22023",
                format!("a command of one statement cannot begin with {first:?}"),
                "Use insert, update, delete or merge with returning, or a select, with others in its with; for all else Once::run.",
            ))
        })?;
        let mode = OneStatement {
            effect: &effect,
            looking: intent.is_known_first().then(|| intent.clone().not_known()),
        };
        self.run_mode(intent, mode).await
    }

    /// Sends the statement, and everything around it.
    async fn execute_at_once<E>(&self, intent: &Intent, effect: &E) -> Result<Value>
    where
        E: Effect<D::Session>,
    {
        self.caller().schema.refuse_if_distributed(
            "a command of one statement",
            "Use run: claim, effect and success in one transaction, each sent to the server of the tenant.",
        )?;
        let (tenant, scope) = (intent.tenant_name(), intent.scope());
        let known = self.shared.retentions.get(tenant, scope);
        match self.execute_keeping(intent, effect, known.as_deref()).await {
            // Nothing happened: with a look at the contract, it does.
            Err(error) if known.is_some() && is_long_answer(&error) => {
                self.execute_keeping(intent, effect, None).await
            }
            executed => executed,
        }
    }

    /// The same for as long as `known` says, or as the contract does.
    async fn execute_keeping<E>(
        &self,
        intent: &Intent,
        effect: &E,
        known: Option<&str>,
    ) -> Result<Value>
    where
        E: Effect<D::Session>,
    {
        let caller = self.caller();
        let args = fast_args(intent)
            .text(intent.correlation_id())
            .text(self.owner());
        let args = match known {
            Some(retention) => args.text(retention),
            None => args,
        };
        let sql = whole(&caller.schema, effect, known.is_some());
        let statement = caller.schema.statement_of(sql);
        let mut session = caller.driver.acquire().await?;
        fault_point!("execute.before_send");
        let rows = effect
            .fetch(&mut session, &statement, args.as_slice())
            .await;
        let rows = rows.map_err(uncertain_if_lost);
        release_unless_lost(session, &rows);
        let mut row = only(rows?)?;
        fault_point!("execute.sent");
        let answer = row.json()?;
        if known.is_none()
            && let Some(retention) = row.opt_text()
        {
            let (tenant, scope) = (intent.tenant_name(), intent.scope());
            self.shared.retentions.put(tenant, scope, retention.into());
        }
        Ok(answer)
    }
}

fn is_long_answer(error: &Error) -> bool {
    matches!(error, Error::Database(why) if why.constraint.as_deref() == Some("answer_is_short"))
}

/// The claim first, since its lock keeps duplicates out: `claim_first` without what the SDK has checked and what cannot
/// be in autocommit, a tenth of the whole; then the effect, which the claim's row asks for; then the
/// success, a plain insert as of every atomic attempt: its primary key decides a race. Each part is read once. Where
/// the retention is not known it is looked up, and returned if it is simple.
fn whole<S>(schema: &Schema, effect: &impl Effect<S>, known: bool) -> String {
    let (name, n) = (schema.name(), effect.len());
    let [scope, key, print, tenant, correlation, owner, keep] = std::array::from_fn(|i| n + i + 1);
    let row = |function, keep: &str| {
        format!(
            "select r.* from pgonce_answer a, {name}.{function}(${scope}, ${key}, ${print}, a.value, \
             null, null, ${tenant}, ${correlation}, ${owner}{keep}) r"
        )
    };
    let answer = "pg_catalog.to_jsonb(e.*)";
    let (value, done, learned) = match known {
        // The database made the answer: nobody has weighed it, and only small ones need not be. What looks at the contract is not a
        // part of this statement, since the server would prepare it each time.
        true => (
            format!(
                "case when pg_catalog.octet_length(j.value::pg_catalog.text) operator(pg_catalog.<=) {SMALL_ANSWER_BYTES} \
                 then j.value else {name}._raise_long_answer() end \
                 from (select {answer} as value from pgonce_effect e offset 0) j"
            ),
            row(
                "_success_row_with_retention",
                &format!(", ${keep}::pg_catalog.text::interval"),
            ),
            "null".to_owned(),
        ),
        false => (
            format!("{answer} from pgonce_effect e"),
            row("_success_row", ""),
            format!(
                "case when pg_catalog.octet_length(a.value::pg_catalog.text) operator(pg_catalog.<=) {SMALL_ANSWER_BYTES} \
                 then {name}._simple_retention(${tenant}, ${scope}) end"
            ),
        ),
    };
    format!(
        "{}, pgonce_claimed as materialized (select case when {name}._scope_is_allowed(${tenant}, ${scope}, ${key}) \
         and {name}._force_durable_commit() \
         and pg_catalog.pg_try_advisory_xact_lock({name}._lock_id(${tenant}, ${scope}, ${key})) \
         and pg_catalog.set_config('{name}.attempt', {name}._intent_name(${tenant}, ${scope}, ${key}), true) is not null \
         then 1 else {name}._raise_busy() end as fence), \
         pgonce_answer as materialized (select coalesce(case when c.fence is not null \
         then (select {value}) end, {name}._raise_no_row()) as value from pgonce_claimed c), \
         pgonce_done as (insert into {name}.intent {done}) \
         select a.value, {learned} from pgonce_answer a",
        Parts::of(effect.sql()).begin("pgonce_effect")
    )
}

fn only(rows: Vec<crate::driver::Row>) -> Result<Row> {
    rows.into_iter()
        .next()
        .map(Row::from)
        .ok_or_else(unreadable)
}

fn acknowledged(value: Value) -> Ack {
    Ack {
        value: Some(value),
        ..Ack::default()
    }
}

/// What a claim gives: the word to send the statement, or a transaction to run it in.
enum Right<D: Driver> {
    Send,
    Attempt(Attempt<D>),
}

/// The user's statement with everything around it.
struct OneStatement<'a, E> {
    effect: &'a E,
    /// The same intent, not known to be new.
    looking: Option<Intent>,
}

impl<D, T, E> Mode<D, T> for OneStatement<'_, E>
where
    D: Driver,
    E: Effect<D::Session>,
{
    const NAME: &'static str = "statement";
    type Right = Right<D>;

    async fn claim(
        &mut self,
        once: &Once<D>,
        intent: &Intent,
        retrying: bool,
    ) -> Result<Claim<Right<D>>> {
        // The database makes the answer of one statement: one that is to be encrypted comes here first.
        let at_once = once.keys().is_none() && !once.caller().schema.is_pooled();
        if at_once && once.begin() == "begin" {
            if intent.is_known_first() && !retrying {
                return Ok(Claim::Run(Right::Send));
            }
            let asking = once.caller().call(&CLAIM_FAST, fast_args(intent));
            let found = step(database_span!("pgonce.claim"), asking, |_| "asked").await?;
            match Outcome::read_full(found.first())? {
                Outcome::Run { .. } => return Ok(Claim::Run(Right::Send)),
                Outcome::Replay(done) => return Ok(Claim::Replay(done)),
                // There is a record that is no answer, or somebody holds it.
                _ => {}
            }
        }
        let intent = self.looking.as_ref().unwrap_or(intent);
        Ok(match once.claim_uncounted(intent).await? {
            Claim::Run(attempt) => Claim::Run(Right::Attempt(attempt)),
            Claim::Replay(done) => Claim::Replay(done),
            Claim::Refused(failure) => Claim::Refused(failure),
            Claim::Busy { retry_after } => Claim::Busy { retry_after },
        })
    }

    async fn work(
        &mut self,
        once: &Once<D>,
        intent: &Intent,
        right: Right<D>,
    ) -> Result<Done<T>, Ended> {
        let effect = self.effect;
        if let Right::Attempt(attempt) = right {
            let mut atomic = Atomic {
                work: |attempt| in_transaction(attempt, once, effect),
                looking: None,
            };
            return atomic.work(once, intent, attempt).await.map(Done::typed);
        }
        let executing = once.execute_at_once(intent, effect);
        match step(database_span!("pgonce.execute"), executing, |_| "committed").await {
            Ok(value) => Ok(Done::new(acknowledged(value), false, 1, 1)),
            // An earlier attempt's effect may be what stood in the way, such as its business key.
            Err(error @ Error::Database(_)) => match once.stored_answer(intent).await {
                Ok(Some(done)) => {
                    once.count(intent, Suppression::Replay);
                    Ok(done.typed())
                }
                _ => Err(Ended::Retry(error)),
            },
            Err(error) => Err(Ended::Retry(error)),
        }
    }
}

/// The statement in a transaction that holds the claim.
async fn in_transaction<D: Driver>(
    mut attempt: Attempt<D>,
    once: &Once<D>,
    effect: &impl Effect<D::Session>,
) -> Result<Done> {
    let schema = &once.caller().schema;
    let sql = format!(
        "{} select coalesce((select pg_catalog.to_jsonb(e.*) from pgonce_effect e), {}._raise_no_row())",
        Parts::of(effect.sql()).begin("pgonce_effect"),
        schema.name()
    );
    let statement = schema.statement_of(sql);
    let rows = effect
        .fetch(&mut **attempt.tx.loan(), &statement, &[])
        .await?;
    attempt.succeed(acknowledged(only(rows)?.json()?)).await
}
