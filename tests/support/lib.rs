//! What the guarantee tests share: a database with pgonce and some business tables in it, both
//! drivers behind one trait, an observer's connection, tools that cut and cancel, and what the tests of relays,
//! consumers and brokers share.

// A test says what it expected by panicking; so does what it calls.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod cancel;
pub mod consumer;
mod cutter;
mod drivers;
mod examples;
mod log;
mod observer;
mod pages;
mod random;
pub mod relay;
mod running;
mod schema;
mod server;
mod world;

pub use cancel::{DropFlag, cancelled_everywhere, in_time, max_poll};
pub use cutter::{Cut, Cutter};
pub use drivers::{Raw, TestDriver};
pub use examples::run_example;
pub use log::{LogReader, Seen, publish};
pub use observer::{Observer, digest_of, hex_text};
pub use random::{poll_pause, random, random_moment, runner, seed, slow_work, unique};
pub use running::{DEADLINE, Run, Running};
pub use schema::install;
pub use server::{Server, connect_redis};
pub use world::{SCOPE, Setting, World, effect, intent, work};

/// What a holder of a lease can try; each has a lease of its own in the kill tests.
pub const ZOMBIE_ACTS: &[&str] = &["heartbeat", "hold", "write", "succeed", "fail", "release"];

/// Runs generic test bodies once for each driver: `name::sqlx` and `name::tokio_postgres`.
#[macro_export]
macro_rules! for_each_driver {
    ($($name:ident),+ $(,)?) => { $(
        mod $name {
            #[tokio::test]
            async fn sqlx() {
                let world = $crate::World::<pgonce::driver::sqlx::Sqlx>::new();
                $crate::in_time(async { super::$name(world.await).await }).await;
            }

            #[tokio::test]
            async fn tokio_postgres() {
                let world = $crate::World::<pgonce::driver::tokio_postgres::TokioPostgres>::new();
                $crate::in_time(async { super::$name(world.await).await }).await;
            }
        }
    )+ };
}

/// Runs generic test bodies for each driver in every setting: PostgreSQL of the system and 18,
/// every isolation level, directly and through a transaction pooler.
#[macro_export]
macro_rules! for_each_driver_and_setting {
    ($($name:ident),+ $(,)?) => { $(
        mod $name {
            #[tokio::test]
            async fn sqlx() {
                for setting in $crate::Setting::all() {
                    let world = $crate::World::<pgonce::driver::sqlx::Sqlx>::in_setting(setting);
                    $crate::in_time(async { super::$name(world.await).await }).await;
                }
            }

            #[tokio::test]
            async fn tokio_postgres() {
                for setting in $crate::Setting::all() {
                    let world = $crate::World::<pgonce::driver::tokio_postgres::TokioPostgres>::in_setting(setting);
                    $crate::in_time(async { super::$name(world.await).await }).await;
                }
            }
        }
    )+ };
}
