//! Only pgonce says that something is done.

use pgonce_misuse::pgonce;
use pgonce::{Ack, Done};

fn makes_it_up() -> Done {
    Done { ack: Ack::status(), replayed: false, attempts: 1 }
}

fn main() {}
