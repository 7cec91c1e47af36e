//! Statements for Citus.

/// A statement in a form that Citus sends to the server of the tenant: nothing beside the call, and arguments that it can
/// compute beforehand. A text is no such thing once it is cast to an interval. That a success belongs to the transaction
/// of its claim is asked there, by the call itself. Nor is a call sent that a cast stands around, or whose only column is one:
/// the cast of a boolean is a function too, and Citus sends no statement with two.
pub(super) fn delegable(text: &str) -> String {
    let text = text.trim_end_matches(" where pgonce._assert_same_transaction()");
    let bare = text.strip_prefix("select pgonce.");
    let text = match bare.and_then(|call| call.strip_suffix(")::text")) {
        Some(call) => format!("select r::text from pgonce.{call}) r"),
        None => text.to_owned(),
    };
    let text = match text.split_once("::text from pgonce.") {
        Some((one, call)) if !one.contains(',') => {
            format!("{one}::text operator(pg_catalog.||) '' from pgonce.{call}")
        }
        _ => text,
    };
    let mut parts = text.split("::text::interval");
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let parameter = whole.split_off(whole.rfind('$').unwrap_or_default());
        whole.push_str(&format!(
            "interval '1 second' operator(pg_catalog.*) \
             pg_catalog.split_part({parameter}, ' ', 1)::double precision{part}"
        ));
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::delegable;

    #[test]
    fn nothing_stands_around_a_call_and_no_cast_stands_for_a_second_one() {
        for (text, expected) in [
            (
                "select outcome, fence from pgonce.claim($1, $2)",
                "select outcome, fence from pgonce.claim($1, $2)",
            ),
            (
                "select pgonce.succeed($1) where pgonce._assert_same_transaction()",
                "select pgonce.succeed($1)",
            ),
            (
                "select pgonce.accept($1, $2)::text",
                "select r::text operator(pg_catalog.||) '' from pgonce.accept($1, $2) r",
            ),
            (
                "select held::text from pgonce.try_lock($1, $2) held",
                "select held::text operator(pg_catalog.||) '' from pgonce.try_lock($1, $2) held",
            ),
            (
                "select made_now::text, state from pgonce.ledger_post($1)",
                "select made_now::text, state from pgonce.ledger_post($1)",
            ),
            (
                "select w from pgonce.wait($1, $2::text::interval, $3) w",
                "select w from pgonce.wait($1, interval '1 second' operator(pg_catalog.*) \
                 pg_catalog.split_part($2, ' ', 1)::double precision, $3) w",
            ),
        ] {
            assert_eq!(delegable(text), expected);
        }
    }
}
