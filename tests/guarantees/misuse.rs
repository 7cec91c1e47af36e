//! What would part an effect from its acknowledgement does not compile, or is an error.

use pgonce::{Ack, Claim, Error};
use pgonce_tests::{TestDriver, World, effect, for_each_driver, intent, work};

#[test]
fn misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("compile_fail/*.rs");
}

async fn the_answer_of_another_intent_is_not_this_ones<D: TestDriver>(world: World<D>) {
    // The types ask for a `Done`; one that was got elsewhere is not enough.
    let _ = world.run(&intent("other")).await.unwrap();
    let wish = intent("this");
    let end = world
        .once
        .run(&wish, async |mut attempt| {
            effect(&mut attempt).await?;
            world.run(&intent("other")).await
        })
        .await;
    assert!(matches!(end, Err(Error::Invalid(_))), "{end:?}");
    world.see.wait_until_clean().await;
    assert_eq!(
        (
            world.see.records(&wish).await,
            world.see.effects(&wish).await
        ),
        (0, 0)
    );
    assert!(!world.run(&wish).await.unwrap().replayed());
}

async fn commands_inside_a_command_are_commands_of_their_own<D: TestDriver>(world: World<D>) {
    let (outer, inner) = (intent("outer"), intent("inner"));
    let failed = world
        .once
        .run(&outer, async |mut attempt| {
            effect(&mut attempt).await?;
            let _ = world.run(&inner).await?;
            Err(Error::work("the outer one fails"))
        })
        .await;
    assert!(matches!(failed, Err(Error::Work(_))));
    assert_eq!(
        (
            world.see.effects(&outer).await,
            world.see.effects(&inner).await
        ),
        (0, 1)
    );
    // The same intent inside itself is busy, not a deadlock.
    let Claim::Run(attempt) = world.once.claim(&outer).await.unwrap() else {
        panic!("fresh")
    };
    assert!(matches!(
        world.once.run(&outer, work::<D>).await,
        Err(Error::Busy { .. })
    ));
    let _ = attempt.succeed(Ack::status()).await.unwrap();
}

for_each_driver!(
    the_answer_of_another_intent_is_not_this_ones,
    commands_inside_a_command_are_commands_of_their_own,
);
