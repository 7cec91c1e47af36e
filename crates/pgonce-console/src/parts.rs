//! Pieces that several pages have: lists of facts, chips, and the forms of acts.

use crate::access::Who;
use crate::db::{Row, text};
use crate::html::{Html, el, query};
use crate::server::App;
use crate::view::{Column, cell, csrf};

/// What is known of one thing, a line for each; lines without a value are left out.
pub(crate) fn facts(row: &Row, columns: &[Column]) -> Html {
    let lines = columns
        .iter()
        .filter(|(_, name, _)| !text(row, name).is_empty())
        .map(|(label, name, kind)| {
            el("dt", &[], *label).and(el("dd", &[], cell(row, name, *kind)))
        });
    el("dl", &[("class", "facts")], lines.collect::<Html>())
}

/// Filters to choose from: a name, and what it puts into the address.
pub(crate) fn chips(path: &str, current: &str, field: &'static str, all: &[(&str, &str)]) -> Html {
    let chips = all.iter().map(|(name, value)| {
        let chosen = if current == *value {
            "aria-current"
        } else {
            ""
        };
        el(
            "a",
            &[
                ("href", &format!("{path}{}", query(&[(field, value)]))),
                ("class", "chip"),
                (chosen, "true"),
            ],
            *name,
        )
    });
    el("div", &[("class", "chips")], chips.collect::<Html>())
}

/// A form with one button that does an act.
pub(crate) fn button(
    app: &App,
    who: &Who,
    act: &'static str,
    label: &str,
    hidden: &[(&'static str, &str)],
    inside: Html,
) -> Html {
    let hidden = hidden.iter().map(|(name, value)| {
        el(
            "input",
            &[("type", "hidden"), ("name", name), ("value", value)],
            "",
        )
    });
    el(
        "form",
        &[
            ("method", "post"),
            ("action", &format!("{}/act/{act}", app.base)),
        ],
        csrf(who)
            .and(hidden.collect::<Html>())
            .and(inside)
            .and(el("button", &[], label)),
    )
}

/// A labelled field.
pub(crate) fn input(id: &str, name: &'static str, label: &str, required: bool) -> Html {
    let id = format!("{name}-{id}");
    el("label", &[("for", &id)], label).and(el(
        "input",
        &[
            ("name", name),
            ("id", &id),
            (if required { "required" } else { "" }, ""),
            ("autocomplete", "off"),
        ],
        "",
    ))
}

/// A count that stops at this number: there may be more.
pub(crate) fn at_least(count: i64, max: i64) -> String {
    match count >= max {
        true => format!("{max}+"),
        false => count.to_string(),
    }
}

/// A form behind a click that asks for a reason, and for a word to type where there is one.
pub(crate) fn reasoned(label: &str, id: &str, word: &str, form: impl FnOnce(Html) -> Html) -> Html {
    let id = format!("{}-{id}", label.to_lowercase().replace(' ', "-"));
    let confirm = match word {
        "" => Html::default(),
        word => input(
            &id,
            "confirm",
            &format!("Type \u{201c}{word}\u{201d} to confirm"),
            true,
        ),
    };
    let inside = input(&id, "reason", "Reason, such as a ticket", true).and(confirm);
    el(
        "details",
        &[("class", "small")],
        el("summary", &[], label).and(form(inside)),
    )
}
