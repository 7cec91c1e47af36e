//! The example of enforcement cases: one case for each complaint, one timer, one notice for each event.

use futures_util::future::join_all;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce_tests::World;

const SCHEMA: &str = include_str!("../../examples/enforcement-case/schema.sql");
const README: &str = include_str!("../../examples/enforcement-case/README.md");

#[tokio::test]
async fn a_complaint_opens_one_case_with_one_timer_and_each_event_sends_one_notice() {
    let world = World::<TokioPostgres>::new().await;
    world.see.run(SCHEMA).await;
    // The same complaint eight times at once.
    let openers = join_all((0..8).map(|_| world.observer())).await;
    let open = "select public.open_case('complaint-77', 'Ada', 'noise at night')";
    let ids = join_all(openers.iter().map(|see| see.text(open))).await;
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    let count = async |what: &str| {
        world
            .see
            .number(&format!("select count(*) from {what}"))
            .await
    };
    assert_eq!(count("public.enforcement_case").await, 1);
    assert_eq!(
        count("pgonce.transition_timer where ended_at is null").await,
        1
    );
    // Another timer of the kind is not started.
    let timer = format!(
        "select made_now::text from pgonce.set_timer('enforcement', '{}', 'sla', 'overdue', '1 day')",
        ids[0]
    );
    assert_eq!(world.see.text(&timer).await, "false");
    // Nobody begins: the timer moves the case once, though eight sessions let it fire.
    world.see.run("select pgonce._move_clock('15 days')").await;
    let fired = join_all(
        openers
            .iter()
            .map(|see| see.number("select count(*) from pgonce.fire_timers()")),
    )
    .await;
    assert_eq!(fired.iter().sum::<i64>(), 1);
    // The example of the page, with the case that is overdue now.
    let example = README
        .split("```sql\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .unwrap();
    for _ in 0..2 {
        world.see.run(example).await;
    }
    let commands =
        "select string_agg(to_state || ' ' || outcome, ', ' order by seq) from pgonce.timelines";
    assert_eq!(
        world.see.text(commands).await,
        "open applied, overdue applied, investigating applied, decided refused, decided applied"
    );
    let sent = join_all(
        openers
            .iter()
            .map(|see| see.number("select public.send_notices()")),
    )
    .await;
    assert_eq!(sent.iter().sum::<i64>(), 0, "the page has sent them");
    let notices = "select string_agg(event, ', ' order by event) from public.notice";
    assert_eq!(
        world.see.text(notices).await,
        "enforcement.decided, enforcement.open, enforcement.overdue"
    );
    assert_eq!(
        count("pgonce.transition_timer where ended_at is null").await,
        0
    );
}
