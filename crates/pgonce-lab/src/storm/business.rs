//! Business patterns in the storm: what the transaction of an attempt writes beside its effect.

use std::time::Duration;

use pgonce::driver::Param;
use pgonce::ledger::Group;
use pgonce::transition::{Command, Outcome};
use pgonce::unique::Updated;
use pgonce::{Error, Tx};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::Result;
use super::attempt::Case;
use super::driver_ext::{DriverExt, Mark};
use super::path::Path;
use super::trial::STUCK;

/// Accounts, rules, and tables with a natural key.
pub(super) const SCHEMA: &str = "
select pgonce.ledger_open(side || ' ' || n, 'EUR', 'debit') from generate_series(0, 63) n, unnest(array['from', 'to']) side;
select pgonce.define_transition('storm', '', 'done');
select pgonce.define_transition('timed', '', 'open'), pgonce.define_transition('timed', 'open', 'late');
create table fact (intent text constraint one_fact_per_intent unique, attempt bigint not null);
create table invoice (intent text constraint one_invoice_per_intent unique, paid_by bigint);
";

/// Pairs of accounts in the ledger.
const PAIRS: usize = 64;

/// What else the transaction of a path writes, by intent.
pub(super) const BESIDE: [(Path, &str); 7] = [
    (
        Path::Ledger,
        "select operation as intent from pgonce.ledger_group where source = 'storm'",
    ),
    (
        Path::LedgerSettle,
        "select split_part(operation, ' ', 1) as intent from pgonce.ledger_groups where source = 'held' group by 1 \
         having string_agg(split_part(operation, ' ', 2) || ' ' || state, ', ' order by operation) \
              = 'dropped voided, kept posted, undo posted, undone posted'",
    ),
    (
        Path::Transition,
        "select command as intent from pgonce.transition_command c join pgonce.transition_entity using (tenant, machine, entity) \
         where c.outcome = 'applied' and state = 'done' and transition_entity.version = 1",
    ),
    // It was opened by one command and moved by one timer, and nothing else was tried.
    (
        Path::TransitionTimer,
        "select e.entity as intent from pgonce.transition_entity e where e.machine = 'timed' and e.state = 'late' and e.version = 2 \
         and (select count(*) from pgonce.transition_command c where c.machine = e.machine and c.entity = e.entity) = 2 \
         and (select count(*) from pgonce.transition_timer t where t.machine = e.machine and t.entity = e.entity and t.ended_at is not null) = 1",
    ),
    (Path::Unique, "select intent from fact"),
    (
        Path::UpdateOnce,
        "select i.intent from invoice i join effect e on e.intent = i.intent and e.attempt = i.paid_by",
    ),
    (
        Path::Refer,
        "select r.reference as intent from pgonce.external_reference r \
         join effect e on e.intent = r.reference and e.attempt::text = r.id where r.system = 'storm'",
    ),
];

/// What the path writes beside the effect. It was rolled back with every attempt before: here it is new.
pub(super) async fn write<D: DriverExt>(
    path: Path,
    tx: &mut Tx<D::Session>,
    mark: &Mark,
) -> pgonce::Result<()> {
    let intent = &*mark.intent;
    let new = match path {
        Path::Ledger => tx.ledger().post(&group("storm", intent, intent)).await?.new,
        Path::LedgerSettle => hold_and_settle::<D>(tx, intent).await?,
        Path::Transition => moved::<D>(tx, "storm", intent, "done").await?,
        Path::TransitionTimer => {
            moved::<D>(tx, "timed", intent, "open").await?
                && tx
                    .set_timer("timed", intent, "deadline", "late", Duration::ZERO)
                    .await?
        }
        Path::Unique => {
            let row = json!({"intent": intent, "attempt": mark.attempt});
            let fact = tx.insert_or_fetch::<Value>("one_fact_per_intent", &row);
            fact.await?.is_new()
        }
        Path::UpdateOnce => {
            let index = "one_invoice_per_intent";
            let row = json!({"intent": intent});
            let invoice = tx.insert_or_fetch::<Value>(index, &row).await?;
            let paid = json!({"intent": intent, "paid_by": mark.attempt});
            let updated = tx.update_once(index, &paid, None).await?;
            invoice.is_new() && updated == Updated::Applied
        }
        Path::Refer => {
            let id = mark.attempt.to_string();
            tx.refer("storm", intent, "effect", &id).await?.is_new()
        }
        _ => true,
    };
    match new {
        true => Ok(()),
        false => Err(Error::work("it was written before")),
    }
}

/// Some accounts, so that trials at the same time meet, and not always.
fn group(source: &str, intent: &str, operation: &str) -> Group {
    let pair = intent.bytes().map(usize::from).sum::<usize>() % PAIRS;
    Group::new(source, operation)
        .debit(&format!("from {pair}"), 7)
        .credit(&format!("to {pair}"), 7)
}

/// One group is held and posted, one is held and voided, one is posted and undone.
async fn hold_and_settle<D: DriverExt>(
    tx: &mut Tx<D::Session>,
    intent: &str,
) -> pgonce::Result<bool> {
    let names = ["kept", "dropped", "undone", "undo"];
    let [kept, dropped, undone, undo] = names.map(|name| format!("{intent} {name}"));
    let held = |operation: &str| group("held", intent, operation);
    let mut ledger = tx.ledger();
    let mut new = ledger.post(&held(&kept).pending(1)).await?.new;
    new &= ledger.settle("held", &kept, 1).await?;
    new &= ledger.post(&held(&dropped).pending(1)).await?.new;
    new &= ledger.void("held", &dropped, 1).await?;
    new &= ledger.post(&held(&undone)).await?.new;
    let undo = Group::new("held", undo);
    new &= ledger.reverse(&undo, "held", &undone).await?.new;
    Ok(new)
}

async fn moved<D: DriverExt>(
    tx: &mut Tx<D::Session>,
    machine: &str,
    intent: &str,
    to: &str,
) -> pgonce::Result<bool> {
    let command = Command::new(machine, intent, to, intent);
    let moved = tx.transition(&command).await?;
    Ok(moved.new && moved.outcome == Outcome::Applied)
}

/// Until the timer of a trial has moved its entity: others may be firing it, and be cut off.
pub(super) async fn see_it_fire<D: DriverExt>(case: &Case<D>) -> Result<()> {
    let state =
        "select state from pgonce.transition_entity where machine = 'timed' and entity = $1";
    let until = Instant::now() + STUCK;
    while Instant::now() < until {
        // However it ends: what is due stays due.
        let _ = case.calm.fire_timers(100).await;
        let found = case.ask(state, &[Param::Text(Some(&case.key))]).await;
        if matches!(found, Ok(Some(state)) if state == "late") {
            return Ok(());
        }
        sleep(Duration::from_millis(4)).await;
    }
    Err(format!("its timer did not fire within {STUCK:?}").into())
}
