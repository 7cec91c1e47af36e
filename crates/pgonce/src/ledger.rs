//! A double-entry ledger: balanced groups of entries, each recorded once.
//!
//! A [`Group`] is named by its source system and that system's operation: recorded again it changes
//! nothing, and with other content it is a conflict (`P4070`). Amounts are integers in minor units, such
//! as cents. Balances are kept in the same statement, and entries are chained by hashes;
//! `pgonce.ledger_verify()` recomputes all of it.

use std::time::SystemTime;

use serde::Serialize;
use serde_json::{Value, json};

use crate::call::{Args, Row, Rows, Sql, unreadable};
use crate::driver::{Connection, Driver, InTransaction};
use crate::error::Result;
use crate::once::Once;
use crate::retry::{self, Class};
use crate::tx::Tx;

static OPEN: Sql = Sql::seldom(
    "select pgonce.ledger_open($1, $2, $3, $4::text::numeric, $5::text::integer, $6)::text",
);
static CLOSE: Sql = Sql::seldom("select pgonce.ledger_close($1, $2)::text");
static POST: Sql = Sql::kept(
    "select made_now::text, state from pgonce.ledger_post($1, $2, $3, $4, $5::text::bigint, $6)",
);
static SETTLE: Sql =
    Sql::kept("select pgonce.ledger_settle($1, $2, $3, $4::text::bigint, $5)::text");
static REVERSE: Sql =
    Sql::kept("select made_now::text, state from pgonce.ledger_reverse($1, $2, $3, $4, $5, $6)");
static BALANCE: Sql = Sql::kept(
    "select currency, normal, balance::text, available::text, pending_debit::text, pending_credit::text \
     from pgonce.ledger_balance($1, pg_catalog.to_timestamp($2::text::double precision), $3)",
);
static STATEMENT: Sql = Sql::seldom(
    "select source, operation, debit::text, credit::text, balance::text from pgonce.ledger_statement($1, \
     pg_catalog.to_timestamp($2::text::double precision), pg_catalog.to_timestamp($3::text::double precision), $4)",
);

/// A side of an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The left side: grows what you own or spend.
    Debit,
    /// The right side: grows what you owe or earn.
    Credit,
}

impl Side {
    fn as_str(self) -> &'static str {
        match self {
            Self::Debit => "debit",
            Self::Credit => "credit",
        }
    }
}

/// An account to open.
///
/// ```
/// use pgonce::ledger::{Account, Side};
///
/// let wallet = Account::new("wallet:ada", "EUR", Side::Credit).floor(0);
/// let fees = Account::new("fees", "EUR", Side::Credit).shards(16);
/// # let _ = (wallet, fees);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    name: String,
    currency: String,
    normal: Side,
    floor: Option<i128>,
    shards: u16,
}

impl Account {
    /// An account without a floor. `normal` is the side that makes its balance grow.
    pub fn new(name: impl Into<String>, currency: impl Into<String>, normal: Side) -> Self {
        Self {
            name: name.into(),
            currency: currency.into(),
            normal,
            floor: None,
            shards: 1,
        }
    }

    /// The least balance, in minor units: a group that would take more is refused (`P4077`). Default: none.
    #[must_use]
    pub fn floor(mut self, floor: i128) -> Self {
        self.floor = Some(floor);
        self
    }

    /// Rows that the balance is spread over, 1 to 64, for an account that many clients post to. Not with a
    /// floor. Default: 1.
    #[must_use]
    pub fn shards(mut self, shards: u16) -> Self {
        self.shards = shards;
        self
    }
}

/// A balanced group of entries: debits are equal to credits in each currency. An account stands in it once.
///
/// ```
/// use pgonce::ledger::Group;
///
/// let sale = Group::new("shop", "order-7")
///     .debit("cash", 11_900)
///     .credit("sales", 10_000)
///     .credit("vat", 1_900);
/// # let _ = sale;
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    source: String,
    operation: String,
    entries: Vec<Value>,
    memo: Option<String>,
    fence: Option<i64>,
}

impl Group {
    /// An empty group, named by the system that it comes from and that system's own name for it.
    pub fn new(source: impl Into<String>, operation: impl Into<String>) -> Self {
        Self {
            source: source.into(),
            operation: operation.into(),
            entries: Vec::new(),
            memo: None,
            fence: None,
        }
    }

    /// Debits an account by an amount in minor units.
    #[must_use]
    pub fn debit(self, account: &str, amount: u128) -> Self {
        self.entry(account, Side::Debit, amount, None)
    }

    /// Credits an account by an amount in minor units.
    #[must_use]
    pub fn credit(self, account: &str, amount: u128) -> Self {
        self.entry(account, Side::Credit, amount, None)
    }

    /// An entry whose account must be in this currency (else `P4075`).
    #[must_use]
    pub fn entry<'a>(
        mut self,
        account: &str,
        side: Side,
        amount: u128,
        currency: impl Into<Option<&'a str>>,
    ) -> Self {
        // As text: JSON numbers of this size are not safe everywhere.
        let mut entry = json!({"account": account, side.as_str(): amount.to_string()});
        if let Some(currency) = currency.into() {
            entry["currency"] = currency.into();
        }
        self.entries.push(entry);
        self
    }

    /// What the group is about, kept with it.
    pub fn memo(mut self, memo: &(impl Serialize + ?Sized)) -> Result<Self> {
        self.memo = Some(serde_json::to_string(memo)?);
        Ok(self)
    }

    /// Only holds the amounts: nothing is posted before [`Ledger::settle`], under this fence or a higher one.
    /// A lease's fence keeps an attempt that lost its lease from settling.
    #[must_use]
    pub fn pending(mut self, fence: i64) -> Self {
        self.fence = Some(fence);
        self
    }
}

/// What became of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// The group's entries are in the accounts.
    Posted,
    /// The group's amounts are held.
    Pending,
    /// The group's amounts are free again.
    Voided,
}

impl State {
    fn as_str(self) -> &'static str {
        match self {
            Self::Posted => "posted",
            Self::Pending => "pending",
            Self::Voided => "voided",
        }
    }
}

/// A group that is in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Recorded {
    /// Whether this call recorded it; else it was recorded before, with the same content.
    pub new: bool,
    /// What became of it so far.
    pub state: State,
}

/// The balance of an account, on its normal side, in minor units.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Balance {
    /// The currency of the account.
    pub currency: String,
    /// The side that makes the balance grow.
    pub normal: Side,
    /// What was posted.
    pub balance: i128,
    /// What is left above the floor after what pending groups hold; `None` without a floor, or for the past.
    pub available: Option<i128>,
    /// What pending groups would debit; `None` for the past.
    pub pending_debit: Option<i128>,
    /// What pending groups would credit; `None` for the past.
    pub pending_credit: Option<i128>,
}

/// The entries of an account in a time, between two balances.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statement {
    /// The balance before the first entry.
    pub opening: i128,
    /// The entries, in the order in which they were posted.
    pub entries: Vec<Entry>,
    /// The balance after the last entry.
    pub closing: i128,
}

/// An entry of a [`Statement`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The source system of its group.
    pub source: String,
    /// The operation of its group.
    pub operation: String,
    /// Whether the entry is a debit or a credit.
    pub side: Side,
    /// Amount of the entry, in minor units.
    pub amount: u128,
    /// The balance after it, on the account's normal side.
    pub balance: i128,
}

/// The ledger of a transaction's tenant, from [`Tx::ledger`]. What it records commits with the transaction.
#[derive(Debug)]
pub struct Ledger<'a, C: Connection>(&'a mut Tx<C>);

impl<C: Connection> Tx<C> {
    /// The ledger of this transaction's tenant.
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlx")]
    /// # async fn example(tx: &mut pgonce::sqlx::Tx) -> Result<(), pgonce::Error> {
    /// use pgonce::ledger::Group;
    ///
    /// let group = Group::new("shop", "order-7").debit("cash", 4_200).credit("sales", 4_200);
    /// let recorded = tx.ledger().post(&group).await?;
    /// assert!(recorded.new);
    /// # Ok(())
    /// # }
    /// ```
    pub fn ledger(&mut self) -> Ledger<'_, C> {
        Ledger(self)
    }
}

impl<C: Connection> Ledger<'_, C> {
    /// Opens an account. Returns whether it is new; one that is something else is a conflict (`P4070`).
    pub async fn open(&mut self, account: &Account) -> Result<bool> {
        let tenant = self.0.shared_tenant().unwrap_or_default();
        let floor = account.floor.map(|floor| floor.to_string());
        let args = Args::texts([&account.name, &account.currency, account.normal.as_str()])
            .text(floor.as_deref())
            .int(i64::from(account.shards))
            .text(&*tenant);
        self.0.call(&OPEN, args).await?.one()?.bool()
    }

    /// Closes an account whose balance is zero. Returns whether it was open.
    pub async fn close(&mut self, account: &str) -> Result<bool> {
        let tenant = self.0.shared_tenant().unwrap_or_default();
        let rows = self.0.call(&CLOSE, Args::texts([account, &tenant])).await?;
        rows.one()?.bool()
    }

    /// Records a group once.
    ///
    /// Each thing that may be wrong has its code: `P4070` other content, `P4071` not balanced, `P4072` unknown
    /// account, `P4073` too large, `P4074` zero, `P4075` wrong currency, `P4076` closed account, `P4077`
    /// below the floor.
    pub async fn post(&mut self, group: &Group) -> Result<Recorded> {
        let tenant = self.0.shared_tenant().unwrap_or_default();
        let entries = serde_json::to_string(&group.entries)?;
        recorded(
            self.0
                .call(&POST, post_args(group, &entries, &tenant))
                .await?,
        )
    }

    /// Posts a pending group. Returns whether this call did, or it was posted before. `P4012`: a higher fence
    /// holds it; `P4078`: it is not pending.
    pub async fn settle(&mut self, source: &str, operation: &str, fence: i64) -> Result<bool> {
        self.end(source, operation, State::Posted, fence).await
    }

    /// Voids a pending group: what it held is free again. As [`Ledger::settle`] otherwise.
    pub async fn void(&mut self, source: &str, operation: &str, fence: i64) -> Result<bool> {
        self.end(source, operation, State::Voided, fence).await
    }

    async fn end(
        &mut self,
        source: &str,
        operation: &str,
        state: State,
        fence: i64,
    ) -> Result<bool> {
        let tenant = self.0.shared_tenant().unwrap_or_default();
        let args = Args::texts([source, operation, state.as_str()])
            .int(fence)
            .text(&*tenant);
        self.0.call(&SETTLE, args).await?.one()?.bool()
    }

    /// Records a group that undoes another one. `group` names the reversal, and may have a memo; its entries
    /// are those of the other with their sides exchanged.
    pub async fn reverse(
        &mut self,
        group: &Group,
        source: &str,
        operation: &str,
    ) -> Result<Recorded> {
        let tenant = self.0.shared_tenant().unwrap_or_default();
        let args = Args::texts([&group.source, &group.operation, source, operation])
            .json(group.memo.as_deref())
            .text(&*tenant);
        recorded(self.0.call(&REVERSE, args).await?)
    }

    /// The balance of an account.
    pub async fn balance(&mut self, account: &str) -> Result<Balance> {
        self.balance_of(account, None).await
    }

    /// The balance that an account had at a time, of what was posted before it.
    pub async fn balance_at(&mut self, account: &str, at: SystemTime) -> Result<Balance> {
        self.balance_of(account, Some(seconds(at))).await
    }

    async fn balance_of(&mut self, account: &str, at: Option<String>) -> Result<Balance> {
        let tenant = self.0.shared_tenant().unwrap_or_default();
        let args = Args::texts([account]).text(at.as_deref()).text(&*tenant);
        let mut row = self.0.call(&BALANCE, args).await?.one()?;
        Ok(Balance {
            currency: row.text()?,
            normal: match &*row.text()? {
                "debit" => Side::Debit,
                _ => Side::Credit,
            },
            balance: row.get()?,
            available: row.opt()?,
            pending_debit: row.opt()?,
            pending_credit: row.opt()?,
        })
    }

    /// The entries of an account from one time to before another, with the balances around them.
    pub async fn statement(
        &mut self,
        account: &str,
        from: SystemTime,
        to: SystemTime,
    ) -> Result<Statement> {
        let tenant = self.0.shared_tenant().unwrap_or_default();
        let (from, to) = (seconds(from), seconds(to));
        let args = Args::texts([account, &from, &to, &tenant]);
        let mut rows = self.0.call(&STATEMENT, args).await?.read(Ok)?;
        let balance = |row: Option<Row>| {
            let mut row = row.ok_or_else(unreadable)?;
            (0..4).for_each(|_| drop(row.opt_text()));
            row.get()
        };
        let closing = balance(rows.pop())?;
        let mut rows = rows.into_iter();
        let opening = balance(rows.next())?;
        Ok(Statement {
            opening,
            entries: rows.map(entry).collect::<Result<_>>()?,
            closing,
        })
    }
}

fn entry(mut row: Row) -> Result<Entry> {
    let (source, operation) = (row.text()?, row.text()?);
    let (debit, credit) = (row.opt()?, row.opt()?);
    Ok(Entry {
        source,
        operation,
        side: match debit {
            Some(_) => Side::Debit,
            None => Side::Credit,
        },
        amount: debit.or(credit).ok_or_else(unreadable)?,
        balance: row.get()?,
    })
}

fn post_args<'a>(group: &'a Group, entries: &'a str, tenant: &'a str) -> Args<'a> {
    Args::texts([&group.source, &group.operation])
        .json(entries)
        .json(group.memo.as_deref())
        .int(group.fence)
        .text(tenant)
}

fn recorded(rows: Rows) -> Result<Recorded> {
    let mut row = rows.one()?;
    Ok(Recorded {
        new: row.bool()?,
        state: match &*row.text()? {
            "posted" => State::Posted,
            "pending" => State::Pending,
            "voided" => State::Voided,
            _ => return Err(unreadable()),
        },
    })
}

/// Seconds since 1970, as text. What is before that has no ledger.
fn seconds(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    let since = since.unwrap_or_default();
    format!("{}.{:06}", since.as_secs(), since.subsec_micros())
}

impl<D: Driver> Once<D> {
    /// Works in a transaction that you opened, for a tenant; empty where there are none.
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlx")]
    /// # async fn example(pool: sqlx::PgPool, once: pgonce::sqlx::Once) -> Result<(), pgonce::Error> {
    /// let mut tx = pool.begin().await?;
    /// let balance = once.tx(&mut tx, "").ledger().balance("cash").await?;
    /// tx.commit().await?;
    /// # let _ = balance;
    /// # Ok(())
    /// # }
    /// ```
    pub fn tx<T: InTransaction>(&self, tx: T, tenant: &str) -> Tx<T> {
        self.tx_on(tx, (!tenant.is_empty()).then(|| tenant.into()))
    }

    /// Records a group in a transaction of its own, in one round trip. It is tried again as the policy says,
    /// also when the reply was lost: a group is recorded once.
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlx")]
    /// # async fn example(once: pgonce::sqlx::Once) -> Result<(), pgonce::Error> {
    /// use pgonce::ledger::Group;
    ///
    /// let group = Group::new("shop", "order-7").debit("cash", 4_200).credit("sales", 4_200);
    /// let recorded = once.post(&group, "").await?;
    /// # let _ = recorded;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn post(&self, group: &Group, tenant: &str) -> Result<Recorded> {
        let entries = serde_json::to_string(&group.entries)?;
        let mut schedule = self.shared.policy.schedule();
        loop {
            let args = post_args(group, &entries, tenant);
            match self.caller().write(&POST, args).await {
                Ok(rows) => return recorded(rows),
                Err(error)
                    if error.class().is_safe_to_rerun() || error.class() == Class::Ambiguous =>
                {
                    if !schedule.pause(retry::at_least(&error), &error).await? {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
}
