//! The frame around every page, and tables.

use axum::response::Html as Body;

use crate::access::Who;
pub(crate) use crate::cell::{Column, Kind, cell, grouped, time};
use crate::db::{Row, text};
use crate::html::{Html, el, query};
use crate::pages::PAGES;
use crate::server::App;

/// What a page shows.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) title: String,
    /// The name of the page in the navigation.
    pub(crate) name: &'static str,
    pub(crate) body: Html,
    /// What stands in the search field.
    pub(crate) sought: String,
    /// Whether it is fetched again every few seconds.
    pub(crate) live: bool,
}

/// A table of a page, and of the API.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) title: String,
    pub(crate) columns: &'static [Column],
    pub(crate) rows: Vec<Row>,
    pub(crate) empty: &'static str,
    /// Where a row leads.
    pub(crate) link: Option<fn(&Row) -> String>,
    /// An act for each row.
    pub(crate) act: Option<fn(&App, &Who, &Row) -> Html>,
    /// What comes after the table.
    pub(crate) foot: Html,
    /// Where the next page is: the page's name in the API, its path, and what its address asks for.
    pub(crate) next: Option<Next>,
    /// Whether there are more that no page shows.
    pub(crate) is_cut: bool,
}

pub(crate) type Next = (&'static str, &'static str, String);

/// The page that begins after this row.
pub(crate) fn after(
    row: &Row,
    page: (&'static str, &'static str),
    keep: &[(&str, &str)],
    cursor: &[(&str, &str)],
) -> Next {
    let cursor = cursor.iter().map(|(field, name)| (*field, text(row, name)));
    let cursor: Vec<_> = cursor.collect();
    let pairs = cursor.iter().map(|(field, value)| (*field, value.as_str()));
    let pairs: Vec<_> = keep.iter().copied().chain(pairs).collect();
    (page.0, page.1, query(&pairs))
}

impl Section {
    pub(crate) fn new(
        title: impl Into<String>,
        columns: &'static [Column],
        rows: Vec<Row>,
        empty: &'static str,
    ) -> Self {
        Self {
            title: title.into(),
            columns,
            rows,
            empty,
            link: None,
            act: None,
            foot: Html::default(),
            next: None,
            is_cut: false,
        }
    }

    /// Keeps so many rows, and says so where there are more.
    pub(crate) fn cut(mut self, size: usize) -> Self {
        self.is_cut = self.rows.len() > size;
        self.rows.truncate(size);
        if self.is_cut {
            let words = format!("These are the first {size}: there are more.");
            self.foot = el("p", &[("class", "muted")], words);
        }
        self
    }

    /// Keeps a page of rows, and the way to the next where there are more. `keep` is the rest of the address; `cursor` says
    /// which column of the last row each field of the address gets.
    pub(crate) fn paged(
        mut self,
        size: usize,
        page: (&'static str, &'static str),
        keep: &[(&str, &str)],
        cursor: &[(&str, &str)],
    ) -> Self {
        let more = self.rows.len() > size;
        self.rows.truncate(size);
        if let (Some(last), true) = (self.rows.last(), more) {
            self.next = Some(after(last, page, keep, cursor));
        }
        self
    }
}

pub(crate) fn shell(app: &App, who: Option<&Who>, page: Page) -> Body<String> {
    let base = &app.base;
    let links = PAGES
        .iter()
        .filter(|entry| who.is_some() && !entry.key.is_empty())
        .map(|entry| {
            let current = if entry.name == page.name {
                "aria-current"
            } else {
                ""
            };
            let address = format!("{base}{}", entry.path);
            el(
                "a",
                &[
                    ("href", &address),
                    ("data-key", entry.key),
                    (current, "page"),
                ],
                entry.label,
            )
        });
    let find = match who {
        Some(_) => el(
            "form",
            &[
                ("action", &format!("{base}/find")),
                ("class", "find"),
                ("role", "search"),
            ],
            el(
                "input",
                &[
                    ("type", "search"),
                    ("name", "q"),
                    ("id", "find"),
                    ("value", &page.sought),
                    ("autocomplete", "off"),
                    ("aria-label", "Find by any id"),
                    (
                        "placeholder",
                        "Find any key, reference, message id \u{2026}   /",
                    ),
                ],
                "",
            ),
        ),
        None => Html::default(),
    };
    let leave = match who {
        Some(who) => el(
            "span",
            &[("class", "who")],
            format!("{} \u{b7} {}", who.name, who.role.as_str()),
        )
        .and(match who.session {
            false => Html::default(),
            true => el(
                "form",
                &[("method", "post"), ("action", &format!("{base}/logout"))],
                csrf(who).and(el("button", &[("class", "quiet")], "Sign out")),
            ),
        }),
        None => Html::default(),
    };
    let live = match page.live {
        true => el(
            "button",
            &[
                ("id", "live"),
                ("class", "quiet"),
                ("title", "Key: r"),
                ("aria-pressed", "true"),
            ],
            "Live",
        ),
        false => Html::default(),
    };
    let header = el(
        "header",
        &[],
        el(
            "a",
            &[("href", &format!("{base}/")), ("class", "brand")],
            el(
                "img",
                &[
                    ("src", &format!("{base}/assets/icon.svg")),
                    ("alt", ""),
                    ("width", "22"),
                    ("height", "22"),
                ],
                "",
            )
            .and("pgonce"),
        )
        .and(el("span", &[("class", "instance")], app.instance.as_str()))
        .and(find)
        .and(live)
        .and(el(
            "button",
            &[
                ("id", "theme"),
                ("class", "quiet"),
                ("aria-label", "Dark or light"),
                ("title", "Dark or light"),
            ],
            "\u{25d0}",
        ))
        .and(leave),
    );
    let title = match app.instance.as_str() {
        "" => format!("{} \u{b7} pgonce", page.title),
        instance => format!("{} \u{b7} {instance} \u{b7} pgonce", page.title),
    };
    let head = el("meta", &[("charset", "utf-8")], "")
        .and(el(
            "meta",
            &[
                ("name", "viewport"),
                ("content", "width=device-width, initial-scale=1"),
            ],
            "",
        ))
        .and(el("title", &[], title))
        .and(el(
            "link",
            &[
                ("rel", "icon"),
                ("href", &format!("{base}/assets/icon.svg")),
            ],
            "",
        ))
        .and(el(
            "link",
            &[
                ("rel", "stylesheet"),
                ("href", &format!("{base}/assets/app.css")),
            ],
            "",
        ))
        .and(el(
            "script",
            &[("src", &format!("{base}/assets/app.js")), ("defer", "")],
            "",
        ));
    let body = el(
        "a",
        &[("href", "#main"), ("class", "skip")],
        "To the content",
    )
    .and(header)
    .and(el(
        "nav",
        &[("aria-label", "Pages")],
        links.collect::<Html>(),
    ))
    .and(el("main", &[("id", "main"), ("tabindex", "-1")], page.body))
    .and(Html::constant(
        "<div id=\"banner\" role=\"status\" hidden></div>",
    ))
    .and(Html::constant(HELP));
    let page = Html::constant("<!doctype html>").and(el(
        "html",
        &[("lang", "en")],
        el("head", &[], head).and(el("body", &[], body)),
    ));
    Body(page.into_string())
}

const HELP: &str = "<dialog id=\"help\" aria-label=\"Keys\"><h2>Keys</h2><dl>\
<dt>/</dt><dd>find</dd><dt>g o</dt><dd>overview</dd><dt>g i</dt><dd>intents</dd><dt>g e</dt><dd>outbox</dd>\
<dt>g m</dt><dd>inbox</dd><dt>g q</dt><dd>queue</dd><dt>g x</dt><dd>external calls</dd><dt>g f</dt><dd>imports</dd><dt>g p</dt><dd>operations</dd><dt>g l</dt><dd>ledger</dd><dt>g s</dt><dd>scopes</dd><dt>g a</dt><dd>audit</dd>\
<dt>j k</dt><dd>next, previous row</dd><dt>enter</dt><dd>open the row</dd><dt>r</dt><dd>live on or off</dd><dt>?</dt><dd>this help</dd>\
</dl><form method=\"dialog\"><button>Close</button></form></dialog>";

/// The proof that a form is ours.
pub(crate) fn csrf(who: &Who) -> Html {
    el(
        "input",
        &[
            ("type", "hidden"),
            ("name", "csrf"),
            ("value", who.csrf.as_deref().unwrap_or_default()),
        ],
        "",
    )
}

pub(crate) fn section(app: &App, who: &Who, section: &Section) -> Html {
    let title = match section.title.as_str() {
        "" => Html::default(),
        title => el("h2", &[], title),
    };
    if section.rows.is_empty() {
        return title
            .and(el("p", &[("class", "empty")], section.empty))
            .and(next_page(app, section))
            .and(section.foot.clone());
    }
    // A column that says nothing takes room from those that do.
    let shown: Vec<&Column> = section
        .columns
        .iter()
        .filter(|(_, field, kind)| {
            kind.is_number() || section.rows.iter().any(|row| !text(row, field).is_empty())
        })
        .collect();
    let acts = section
        .act
        .map(|_| el("th", &[], el("span", &[("class", "hidden")], "Act")))
        .unwrap_or_default();
    let head = shown.iter().map(|(name, _, kind)| {
        el(
            "th",
            &[
                ("scope", "col"),
                (if kind.is_number() { "class" } else { "" }, "number"),
            ],
            *name,
        )
    });
    let head = el(
        "thead",
        &[],
        el("tr", &[], head.collect::<Html>().and(acts)),
    );
    let rows = section.rows.iter().map(|row| {
        let mut first = section
            .link
            .map(|link| format!("{}{}", app.base, link(row)));
        let cells = shown.iter().map(|(name, field, kind)| {
            let inside = cell(row, field, *kind);
            let inside = match first.take() {
                Some(address) => el("a", &[("href", &address)], inside),
                None => inside,
            };
            el(
                "td",
                &[
                    ("data-label", name),
                    (if kind.is_number() { "class" } else { "" }, "number"),
                ],
                inside,
            )
        });
        let cells: Html = cells.collect();
        let act = section
            .act
            .map(|act| el("td", &[("class", "act")], act(app, who, row)))
            .unwrap_or_default();
        el("tr", &[], cells.and(act))
    });
    let table = el(
        "table",
        &[],
        head.and(el("tbody", &[], rows.collect::<Html>())),
    );
    title
        .and(el(
            "div",
            &[
                ("class", "scroll"),
                ("tabindex", "0"),
                ("role", "region"),
                ("aria-label", &section.title),
            ],
            table,
        ))
        .and(next_page(app, section))
        .and(section.foot.clone())
}

/// The same thing for a terminal.
pub(crate) fn copies(commands: &[(&'static str, String)]) -> Html {
    if commands.is_empty() {
        return Html::default();
    }
    let lines = commands.iter().map(|(name, command)| {
        el(
            "div",
            &[("class", "copy")],
            el("span", &[], *name)
                .and(el("code", &[], command.as_str()))
                .and(el(
                    "button",
                    &[
                        ("type", "button"),
                        ("class", "quiet"),
                        ("data-copy", command),
                    ],
                    "Copy",
                )),
        )
    });
    el(
        "details",
        &[("class", "copies")],
        el("summary", &[], "Copy as CLI, SQL or curl").and(lines.collect::<Html>()),
    )
}

fn next_page(app: &App, section: &Section) -> Html {
    let Some((_, path, query)) = &section.next else {
        return Html::default();
    };
    let address = format!("{}{path}{query}", app.base);
    let link = el(
        "a",
        &[("href", &address), ("rel", "next")],
        "Next page \u{2192}",
    );
    el("p", &[("class", "more")], link)
}

/// A word for a shell.
pub(crate) fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// A literal for SQL.
pub(crate) fn sql_literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    match text.contains('\\') {
        true => format!("E'{}'", quoted.replace('\\', "\\\\")),
        false => format!("'{quoted}'"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_literals_are_written_as_they_must_be() {
        assert_eq!(shell_word("order-7"), "order-7");
        assert_eq!(shell_word("a'b; rm"), r"'a'\''b; rm'");
        assert_eq!(sql_literal("o'k\\"), r"E'o''k\\'");
    }
}
