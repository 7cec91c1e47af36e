//! One trial: prepare, act over a wire that breaks, and recover as a real client would.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pgonce::driver::{Connection as _, Param, Session as _};
use pgonce::retry::Policy;
use pgonce::{Attempt, Claim, Lease, Once};
use pgonce_testkit::{Action, CuttingProxy, Message, Outcome, Trial};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::Result;
use super::attempt::{Case, Role, acknowledgement};
use super::driver_ext::{DriverExt, Mark};
use super::fixture::Fixture;
use super::outside::Bank;
use super::path::Path;
use super::{business, inbox, relay};

/// A client that is not answered by then is stuck.
pub(super) const STUCK: Duration = Duration::from_secs(60);
/// How long a second client has the field for itself.
pub(super) const WINDOW: Duration = Duration::from_millis(25);
/// How long a holder waits for somebody to wait for it. One that does not wait ends long before.
const WATCH: Duration = Duration::from_secs(5);

/// Maximum time of a look-up.
const LOOK: Duration = Duration::from_millis(500);

/// What came of a trial.
#[derive(Debug)]
pub(super) struct Trialed {
    pub(super) path: Path,
    pub(super) trial: Trial,
    pub(super) key: String,
    /// How many of its faults happened.
    pub(super) fired: usize,
    /// None of its faults happened, and the trial was made once more.
    pub(super) repeated: bool,
    /// Why it was not answered.
    pub(super) stuck: Option<String>,
}

/// Who was there before.
enum Before<D: DriverExt> {
    Nobody,
    /// Holds the intent in an open transaction, its effect written.
    Holder(Box<Attempt<D>>, u64),
    /// Holds a lease that ran out.
    Zombie(Box<Lease<D>>, u64),
}

/// Walks a path with these faults.
pub(super) async fn run<D: DriverExt>(
    fixture: &Fixture<D>,
    proxy: &CuttingProxy,
    path: Path,
    trial: &Trial,
    number: u64,
) -> Trialed {
    let key = format!("{}-{number}", path.name());
    let walked = match path {
        _ if path.is_of_relays() => relay::walk(fixture, proxy, path, trial, &key).await,
        _ if path.is_of_consumers() => inbox::walk(fixture, proxy, path, trial, &key).await,
        _ => match fixture.case(path, number).await {
            Ok(case) => walk(fixture, proxy, &case, trial, number).await.map(drop),
            Err(error) => Err(error),
        },
    };
    Trialed {
        path,
        trial: trial.clone(),
        key,
        fired: proxy.all_fired().len(),
        repeated: false,
        stuck: walked.err().map(|error| error.to_string()),
    }
}

/// Walks a path without a fault, and gives its messages.
pub(super) async fn dry_run<D: DriverExt>(
    fixture: &Fixture<D>,
    proxy: &CuttingProxy,
    path: Path,
    number: u64,
) -> Result<Vec<Message>> {
    let case = fixture.case(path, number).await?;
    if path.is_of_relays() {
        relay::walk(fixture, proxy, path, &Trial::default(), &case.key).await?;
        return Ok(transcript(proxy));
    }
    if path.is_of_consumers() {
        inbox::walk(fixture, proxy, path, &Trial::default(), &case.key).await?;
        return Ok(transcript(proxy));
    }
    let outcome = walk(fixture, proxy, &case, &Trial::default(), number).await?;
    let fits = match (&outcome, path.calm_code()) {
        (Some(Outcome::Failed(code)), Some(expected)) => code == expected,
        (Some(Outcome::Success(_)), None) | (None, _) => true,
        _ => false,
    };
    if !fits {
        return Err(format!(
            "path {} went astray without any fault: {outcome:?}",
            path.name()
        )
        .into());
    }
    Ok(transcript(proxy))
}

fn transcript(proxy: &CuttingProxy) -> Vec<Message> {
    let mut messages = proxy.transcript();
    messages.retain(|message| message.name != "Terminate");
    messages
}

/// Gives the outcome of the first client, where it asked for something.
async fn walk<D: DriverExt>(
    fixture: &Fixture<D>,
    proxy: &CuttingProxy,
    case: &Case<D>,
    trial: &Trial,
    number: u64,
) -> Result<Option<Outcome>> {
    let payload = match case.path {
        Path::Conflict => Path::other_payload(number),
        _ => case.payload.clone(),
    };
    let _alone = match case.path {
        Path::Recovery => Some(fixture.recovery.lock().await),
        _ => None,
    };
    let before = prepare(case).await?;
    proxy.start_over();
    proxy.arm_trial(trial);
    let policy = Policy::default().base(Duration::from_millis(1));
    let policy = match (trial.faults.len(), case.path) {
        // The second fault meets the retry over the same wire, and must be the last word.
        (2.., _) => policy.tries(2),
        (_, Path::AtomicRetried | Path::SlowCommit) => policy.tries(4),
        _ => policy.tries(1),
    };
    let first = fixture.through(proxy, policy)?;
    let holds = trial
        .faults
        .iter()
        .any(|fault| fault.action == Action::SecondClientBetween);
    let (over, first_is_over) = watch::channel(false);

    let (holder, zombie) = match before {
        Before::Nobody => (None, None),
        Before::Holder(attempt, number) => (Some((attempt, number)), None),
        Before::Zombie(lease, number) => (None, Some((*lease, number))),
    };
    let first_client = async {
        let acted = async {
            let outcome = act(case, &first, &payload).await;
            if proxy.fired().is_none() || holds {
                see_it_end(&first).await;
            }
            outcome
        };
        let outcome = timeout(STUCK, acted).await;
        // Nobody is left to wait for what is held.
        proxy.disarm();
        case.first_is_over.store(true, Relaxed);
        // The receiver may have finished already.
        let _ = over.send(true);
        outcome
    };
    let (outcome, second, held) = tokio::join!(
        first_client,
        meanwhile(case, proxy, &payload, holds, first_is_over.clone()),
        finish(case, holder, first_is_over.clone()),
    );
    let outcome =
        outcome.map_err(|_| format!("the first client had no answer within {STUCK:?}"))?;
    second?;
    held?;

    recover(case, &payload).await?;
    if let Some((lease, number)) = zombie {
        return_of(case, lease, number).await;
    }
    Ok(outcome)
}

/// What the first client does.
async fn act<D: DriverExt>(case: &Case<D>, first: &Once<D>, payload: &Value) -> Option<Outcome> {
    if case.path == Path::Purge {
        // However it ends: it promises nothing but to touch only what is expired.
        let _ = first.purge(20).await;
        return None;
    }
    if case.path == Path::ExternalReconcile {
        let mark = case.mark(0, payload);
        let reconciler = first.reconciler(Bank::new(case, &mark, false));
        // However it ends: it only brings what the provider says.
        if reconciler
            .timeout(LOOK)
            .pass()
            .await
            .is_ok_and(|pass| pass.decided > 0)
        {
            case.history.saw("reconciled");
        }
        return None;
    }
    if case.path == Path::Recovery {
        // However it ends: it only decides what nobody is at.
        if let Ok(recovered) = first.recovery().run_once().await {
            case.history.saw_times("recovered", recovered.succeeded);
            case.history.saw_times("released", recovered.released);
        }
        return None;
    }
    Some(case.attempt_with(first, Role::First, payload).await)
}

/// The SDK ends some transactions after it has answered; the only connection is free when it did.
/// It is closed then: what a pool says to a connection that comes back is nobody's path.
pub(super) async fn see_it_end<D: DriverExt>(first: &Once<D>) {
    let _ = timeout(Duration::from_secs(2), first.driver().acquire()).await;
}

async fn prepare<D: DriverExt>(case: &Case<D>) -> Result<Before<D>> {
    match case.path {
        Path::ReplayClaim | Path::ReplayAnswer | Path::Conflict | Path::Purge => {
            let outcome = case.attempt(&case.calm, Role::Again).await;
            let outcome = match outcome {
                Outcome::Success(_) => return Ok(Before::Nobody),
                // Others at the same time may be in the way of a serializable transaction.
                _ => case.insist(Role::Again, &case.payload, STUCK).await,
            };
            outcome.map_err(|last| format!("could not be prepared: {last:?}"))?;
            Ok(Before::Nobody)
        }
        Path::Busy | Path::Wait => {
            let intent = case.intent(&case.payload)?;
            let Claim::Run(mut attempt) = case.calm.claim(&intent).await? else {
                return Err("a fresh intent was not given to its first client".into());
            };
            let number = case.history.invoke(&*case.key, case.payload.clone());
            D::write(attempt.conn(), &case.mark(number, &case.payload)).await?;
            Ok(Before::Holder(Box::new(attempt), number))
        }
        Path::ExternalReconcile => {
            // Its answer is lost. Others at the same time may be in its way: then there is less to look up.
            let _ = case.attempt(&case.calm, Role::First).await;
            Ok(Before::Nobody)
        }
        Path::LeaseTakeover | Path::AtomicTakeover | Path::Recovery => {
            let intent = case.intent(&case.payload)?;
            let claim = case.calm.lease(&intent, Duration::from_millis(1)).await?;
            let Claim::Run(lease) = claim else {
                return Err("a fresh intent was not leased to its first client".into());
            };
            let number = case.history.invoke(&*case.key, case.payload.clone());
            if case.path == Path::Recovery && number.is_multiple_of(2) {
                // It has done its work, and vanishes before it says so.
                let mut session = case.calm.driver().acquire().await?;
                D::write(session.raw(), &case.mark(number, &case.payload)).await?;
                session.keep();
            }
            sleep(Duration::from_millis(3)).await;
            Ok(Before::Zombie(Box::new(lease), number))
        }
        _ => Ok(Before::Nobody),
    }
}

/// While a message of the first is held, a second client goes through the same intent.
async fn meanwhile<D: DriverExt>(
    case: &Case<D>,
    proxy: &CuttingProxy,
    payload: &Value,
    holds: bool,
    mut first_is_over: watch::Receiver<bool>,
) -> Result<()> {
    let window = if case.path.is_leased() {
        case.lease + 2 * WINDOW
    } else {
        WINDOW
    };
    if !holds {
        return Ok(());
    }
    loop {
        tokio::select! {
            _ = first_is_over.wait_for(|over| *over) => return Ok(()),
            _ = proxy.held() => {}
        }
        case.history.saw("second client between");
        let mut second = std::pin::pin!(case.insist(Role::Second, payload, STUCK));
        let answered = match timeout(window, &mut second).await {
            Ok(answered) => {
                proxy.release();
                answered
            }
            // It cannot get by: from here on both race.
            Err(_) => {
                proxy.release();
                second.await
            }
        };
        answered
            .map_err(|last| format!("the second client was not answered, last outcome {last:?}"))?;
    }
}

/// The holder commits when somebody waits for it, or when the first client is through.
async fn finish<D: DriverExt>(
    case: &Case<D>,
    holder: Option<(Box<Attempt<D>>, u64)>,
    mut first_is_over: watch::Receiver<bool>,
) -> Result<()> {
    let Some((attempt, number)) = holder else {
        return Ok(());
    };
    let over = first_is_over.wait_for(|over| *over);
    if case.path == Path::Wait {
        tokio::select! {
            _ = over => {}
            _ = timeout(WATCH, somebody_waits(case)) => {}
        }
    } else {
        // As long as the first client may take, however busy the machine: it must meet the holder.
        let _ = timeout(STUCK, over).await;
    }
    let mark: Mark = case.mark(number, &case.payload);
    let done = attempt.succeed(acknowledgement(mark.attempt)?).await;
    case.history.outcome(number, case.outcome(done));
    Ok(())
}

async fn somebody_waits<D: DriverExt>(case: &Case<D>) {
    let scope = case.path.scope();
    let params = [Param::Text(Some(&scope)), Param::Text(Some(&case.key))];
    let asked = "select exists (select from pg_locks where locktype = 'advisory' and not granted \
         and database = (select oid from pg_database where datname = current_database()) \
         and (classid::bigint << 32 | objid::bigint) = pgonce._lock_id('', $1, $2))::text";
    while !matches!(case.ask(asked, &params).await, Ok(Some(yes)) if yes == "true") {
        sleep(Duration::from_millis(4)).await;
    }
    case.history.saw("waited");
}

async fn recover<D: DriverExt>(case: &Case<D>, payload: &Value) -> Result<()> {
    if case.path == Path::Purge {
        case.calm.purge(20).await?;
    }
    let stuck =
        |last: Option<Outcome>| format!("not answered within {STUCK:?}, last outcome {last:?}");
    case.insist(Role::Again, payload, STUCK)
        .await
        .map_err(stuck)?;
    if case.path == Path::TransitionTimer {
        business::see_it_fire(case).await?;
    }
    if case.path == Path::Cached {
        // Until the cache has answered, and then a few times more.
        for _ in 0..20 {
            let _ = case.attempt(&case.calm, Role::Again).await;
        }
    }
    if case.path == Path::Conflict {
        case.insist(Role::Again, &case.payload, STUCK)
            .await
            .map_err(stuck)?;
    }
    Ok(())
}

/// The holder of a lease that was taken over comes back, and must be turned away.
async fn return_of<D: DriverExt>(case: &Case<D>, lease: Lease<D>, number: u64) {
    let mark = case.mark(number, &case.payload);
    let done = case.end_lease(&lease, &mark).await;
    case.history.outcome(number, case.outcome(done));
}
