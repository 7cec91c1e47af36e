//! Configurations and addresses of any shape: read, or refused with a place, and never a panic or a password in an error.

use clap::Parser as _;
use pgonce_testkit::fuzz;

use crate::config_file::ConfigFile;
use crate::database::Address;
use crate::{consume, relay, serve, webhooks, work};

fn read_or_every_fault_has_its_place<C: ConfigFile>(example: &str, short: &str) {
    fuzz(&[example, short], 700, |input| {
        let text = String::from_utf8_lossy(input);
        match C::parse("x.toml", &text) {
            Ok(config) => assert!(!config.names().is_empty()),
            Err(faults) => {
                let lines = text.split('\n').count();
                assert!(faults.iter().next().is_some());
                for fault in faults.iter() {
                    assert!(
                        (1..=lines).contains(&fault.line) && fault.column >= 1,
                        "{fault:?}"
                    );
                    assert!(
                        !fault.what.is_empty() && !fault.hint.is_empty(),
                        "{fault:?}"
                    );
                }
                assert!(faults.to_string().starts_with("x.toml:"));
            }
        }
    });
}

#[test]
fn fuzz_a_configuration_of_relays() {
    let short = "[[relays]]\nsubscription = \"b\"\nsink = \"stdout:\"\n[relays.create]\n";
    read_or_every_fault_has_its_place::<relay::config::Config>(relay::config::EXAMPLE, short);
}

#[test]
fn fuzz_a_configuration_of_consumers() {
    let short = "[[consumers]]\nconsumer = \"c\"\nsource = \"outbox:c\"\nsql = \"apply\"\nlease = \"30s\"\n";
    let example = include_str!("consume/example.toml");
    read_or_every_fault_has_its_place::<consume::Config>(example, short);
}

#[test]
fn fuzz_a_configuration_of_workers() {
    let short = "[[workers]]\nqueues = [\"q\"]\nsql = \"pack\"\nconcurrency = 3\n";
    read_or_every_fault_has_its_place::<work::Config>(include_str!("work/example.toml"), short);
}

#[test]
fn fuzz_a_configuration_of_webhooks() {
    let short = "[[webhooks]]\npath = \"/h\"\nconsumer = \"c\"\nsource = \"s\"\nscheme = \"standard\"\nsecret_env = \"S\"\n";
    let example = include_str!("webhooks/example.toml");
    read_or_every_fault_has_its_place::<webhooks::Config>(example, short);
}

const SECRET: &str = "0123456789abcdef";

#[test]
fn fuzz_settings_of_the_daemon() {
    #[derive(Debug, clap::Parser)]
    struct Flags {
        #[command(flatten)]
        given: serve::Given,
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pgonce.toml");
    let flags = Flags::parse_from(["serve", "--config", file.to_str().unwrap()]);
    let samples = [
        "listen = \"127.0.0.1:0\"\nroles = [\"console\", \"metrics\"]\npurge_every = \"5m\"\npurge_batch = 77\nredact = [\"card\"]\n",
        "console_tokens = \"ada:admin:0123456789abcdef,bob:viewer:0123456789abcdef\"\nlog_format = \"json\"\n",
        "console_groups = [\"sre=operator\"]\nconsole_proxies = [\"10.0.0.7\", \"fd00::/64\"]\nconsole_user_header = \"Remote-User\"\n",
        "roles = \"relay\"\nrelay_file = \"relay.toml\"\ndrain_timeout = \"1s\"\n",
    ];
    fuzz(&samples, 700, |input| {
        std::fs::write(&file, input).unwrap();
        if let Err(error) = serve::checked(&flags.given) {
            let (what, _) = error.words();
            // A secret that was damaged into another setting is none any longer.
            let elsewhere = |(name, value): (&String, &toml::Value)| {
                name.contains(SECRET)
                    || name != "console_tokens" && format!("{value:?}").contains(SECRET)
            };
            let text = String::from_utf8_lossy(input);
            let moved =
                toml::from_str::<toml::Table>(&text).is_ok_and(|table| table.iter().any(elsewhere));
            assert!(
                !what.is_empty() && (moved || !what.contains(SECRET)),
                "{what}"
            );
        }
    });
}

#[test]
fn fuzz_an_address_of_a_database_never_shows_its_password() {
    let samples = [
        "postgres://user:hunter2hunter2@host:5432/shop?sslmode=require&application_name=x",
        "postgresql://user:hunter2hunter2@[::1]:5432,other:5433/shop?target_session_attrs=read-write",
        "host=localhost port=5432 user=me password=hunter2hunter2 dbname=shop sslmode=verify-full sslrootcert=/x",
        "postgres:///shop?host=/var/run/postgresql&password=hunter2hunter2",
    ];
    fuzz(&samples, 4000, |input| {
        let text = String::from_utf8_lossy(input);
        if let Err(why) = Address::parse(&text) {
            assert!(!why.is_empty() && !why.contains("hunter2hunter2"), "{why}");
        }
    });
}
