//! Commands that are one statement: claim, effect and acknowledgement in one round trip.

use std::sync::Arc;

use serde_json::Value;

use crate::ack::{Ack, Done};
use crate::attempt::Attempt;
use crate::call::{
    Around, BEGIN_AS_IS, Row, Schema, release_unless_lost, uncertain_if_lost, unreadable,
};
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
        // What cannot be a part of another statement is refused before anything is asked.
        around(&self.caller().schema, &effect)?;
        self.run_mode(intent, OneStatement { effect: &effect })
            .await
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
        let around = around(&caller.schema, effect)?;
        let statement = match known {
            Some(_) => &around.keeping,
            None => &around.asking,
        };
        let mut session = caller.driver.acquire().await?;
        fault_point!("execute.before_send");
        let rows = effect.fetch(&mut session, statement, args.as_slice()).await;
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

/// The user's statement with all around it. It is written once, since that takes a tenth as long as sending it.
fn around<S>(schema: &Schema, effect: &impl Effect<S>) -> Result<Arc<Around>> {
    schema.around(effect.sql(), effect.len(), |sql| {
        let parts = Parts::of(sql);
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
        let (name, begin) = (schema.name(), parts.begin("pgonce_effect"));
        let in_transaction = format!(
            "{begin} select coalesce((select pg_catalog.to_jsonb(e.*) from pgonce_effect e), {name}._raise_no_row())"
        );
        Ok(Around {
            params: effect.len(),
            keeping: schema.statement_of(keeping(name, &begin, effect.len())),
            asking: schema.statement_of(asking(name, &begin, effect.len())),
            in_transaction: schema.statement_of(in_transaction),
        })
    })
}

/// What pgonce adds to the values of the user's statement, by the numbers of their parameters: scope, key, fingerprint,
/// tenant, correlation, owner and retention.
fn numbers(params: usize) -> [usize; 7] {
    std::array::from_fn(|i| params + i + 1)
}

/// The claim, then the `answer`. The claim comes first, since its lock keeps duplicates out: `claim_first` without what the SDK
/// has checked and what cannot be in autocommit. It sets no mark: that of a first attempt only keeps its parts in one
/// transaction, and one statement always is. Ids of events that it publishes are random then, and not derived: those of a first attempt
/// differ from transaction to transaction in either case.
fn claimed(name: &str, params: usize, answer: &str) -> String {
    let [scope, key, _, tenant, ..] = numbers(params);
    format!(
        "case when {name}._scope_is_allowed(${tenant}, ${scope}, ${key}) and {name}._force_durable_commit() \
         and pg_catalog.pg_try_advisory_xact_lock({name}._lock_id(${tenant}, ${scope}, ${key})) \
         then coalesce(({answer}), {name}._raise_no_row()) else pg_catalog.to_jsonb({name}._raise_busy()) end"
    )
}

/// Kept for as long as the last parameter says. The success is a plain insert, as of every atomic attempt: its primary key
/// decides a race. The database made the answer: nobody has weighed it, and only small ones need not be. What looks at the
/// contract is not a part of this statement, since the server would prepare it each time.
fn keeping(name: &str, begin: &str, params: usize) -> String {
    let [scope, key, print, tenant, correlation, owner, keep] = numbers(params);
    let small = format!(
        "select case when pg_catalog.octet_length(j.value::pg_catalog.text) operator(pg_catalog.<=) {SMALL_ANSWER_BYTES} \
         then j.value else {name}._raise_long_answer() end \
         from (select pg_catalog.to_jsonb(e.*) as value from pgonce_effect e offset 0) j"
    );
    format!(
        "{begin}, pgonce_done as (insert into {name}.intent \
         (fence, first_at, expires_at, attempts, status, tenant, scope, key, fingerprint, answer, correlation_id, owner) \
         select 1, {name}.now(), {name}.now() operator(pg_catalog.+) ${keep}::pg_catalog.text::interval, 1, 'succeeded', \
         ${tenant}, ${scope}, ${key}, ${print}, pg_catalog.to_jsonb(e.*), ${correlation}, ${owner} from pgonce_effect e) \
         select {}, null",
        claimed(name, params, &small)
    )
}

/// Kept as the contract says, which is looked up, and returned where it is simple.
fn asking(name: &str, begin: &str, params: usize) -> String {
    let [scope, key, print, tenant, correlation, owner, _] = numbers(params);
    let answer = "select pg_catalog.to_jsonb(e.*) from pgonce_effect e";
    format!(
        "{begin}, pgonce_done as (insert into {name}.intent select r.* from pgonce_effect e, \
         {name}._success_row(${scope}, ${key}, ${print}, pg_catalog.to_jsonb(e.*), null, null, ${tenant}, ${correlation}, ${owner}) r) \
         select a.value, case when pg_catalog.octet_length(a.value::pg_catalog.text) operator(pg_catalog.<=) {SMALL_ANSWER_BYTES} \
         then {name}._simple_retention(${tenant}, ${scope}) end from (select {} as value offset 0) a",
        claimed(name, params, answer)
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

/// What a claim gives: a transaction to run the statement in; none where it may be sent by itself.
type Right<D> = Option<Attempt<D>>;

/// The user's statement with everything around it.
struct OneStatement<'a, E> {
    effect: &'a E,
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
        if at_once && once.begin() == BEGIN_AS_IS {
            if intent.is_known_first() && !retrying {
                return Ok(Claim::Run(None));
            }
            let asking = once.caller().call(&CLAIM_FAST, fast_args(intent));
            let found = step(database_span!("pgonce.claim"), asking, |_| "asked").await?;
            match Outcome::read_full(found.first())? {
                Outcome::Run { .. } => return Ok(Claim::Run(None)),
                Outcome::Replay(done) => return Ok(Claim::Replay(done)),
                // There is a record that is no answer, or somebody holds it.
                _ => {}
            }
        }
        let looking = intent.clone().not_known();
        Ok(match once.claim_uncounted(&looking).await? {
            Claim::Run(attempt) => Claim::Run(Some(attempt)),
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
        let executed = match right {
            Some(attempt) => {
                let mut atomic = Atomic {
                    work: |attempt| in_transaction(attempt, once, effect),
                    looking: None,
                };
                atomic.work(once, intent, attempt).await.map(Done::typed)
            }
            None => {
                let executing = once.execute_at_once(intent, effect);
                match step(database_span!("pgonce.execute"), executing, |_| "committed").await {
                    Ok(value) => Ok(Done::new(acknowledged(value), false, 1, 1)),
                    Err(error) => Err(Ended::Retry(error)),
                }
            }
        };
        match executed {
            // An earlier attempt's effect may be what stood in the way: its business key, or that nothing was left to do.
            Err(Ended::Retry(error)) if is_refusal(&error) => {
                match once.stored_answer(intent).await {
                    Ok(Some(done)) => {
                        once.count(intent, Suppression::Replay);
                        Ok(done.typed())
                    }
                    _ => Err(Ended::Retry(error)),
                }
            }
            executed => executed,
        }
    }
}

/// Whether the server said no; of the others the claim knows more.
fn is_refusal(error: &Error) -> bool {
    !matches!(
        error,
        Error::Disconnected(_) | Error::Uncertain(_) | Error::LostRace(_)
    )
}

/// The statement in a transaction that holds the claim.
async fn in_transaction<D: Driver>(
    mut attempt: Attempt<D>,
    once: &Once<D>,
    effect: &impl Effect<D::Session>,
) -> Result<Done> {
    let around = around(&once.caller().schema, effect)?;
    let rows = effect
        .fetch(&mut **attempt.tx.loan(), &around.in_transaction, &[])
        .await?;
    attempt.succeed(acknowledged(only(rows)?.json()?)).await
}
