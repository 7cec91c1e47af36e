//! The outbox: what commits is delivered, in order, once it is durable; nothing else is.

mod by_sql;
mod lanes;
mod life;
mod moved;
mod operate;
mod parked;
mod parked_many;
mod partitions;
mod publish;
mod reasons;
mod replay;
mod retention;
mod windows;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce_tests::{LogReader, World};

/// A database with one subscription, `c`, whose lanes one reader holds.
async fn one_reader() -> (World<TokioPostgres>, LogReader) {
    let world = World::<TokioPostgres>::new().await;
    world
        .see
        .run("select pgonce.create_subscription('c')")
        .await;
    let reader = LogReader::claim(world.observer().await, "c", "reader").await;
    (world, reader)
}
