//! Which file of the SDK imports which: in one direction, so that each can be read after those below it.

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::{files, read, root};

/// The folders that lead to a module, and its name.
type Module = Vec<String>;

fn module_of(file: &str) -> Module {
    let path = file.trim_end_matches(".rs").trim_end_matches("/mod");
    path.split('/').map(str::to_owned).collect()
}

/// The paths that a tree of imports names, such as `a::{b, c::d}`. Ends where the tree does.
fn paths_of(tree: &str, before: &Module, found: &mut Vec<Module>) -> usize {
    let mut path = before.clone();
    let mut at = 0;
    while let Some(next) = tree[at..].chars().next() {
        let name: String = tree[at..]
            .chars()
            .take_while(|letter| letter.is_alphanumeric() || *letter == '_')
            .collect();
        at += name.len();
        match (name.is_empty(), next) {
            (false, _) => path.push(name),
            (true, ':') => at += 1,
            (true, '{') => {
                at += 1;
                while !tree[at..].starts_with('}') && at < tree.len() {
                    at += paths_of(&tree[at..], &path, found);
                    at += tree[at..].len() - tree[at..].trim_start_matches([',', ' ', '\n']).len();
                }
                return at + 1;
            }
            _ => break,
        }
    }
    found.push(path);
    at
}

/// The modules that the code of this one names, tests aside.
fn imports(text: &str, own: &Module) -> Vec<Module> {
    let code = text.split("#[cfg(test)]\nmod ").next().unwrap();
    let lines = code.lines().map(|line| line.split("//").next().unwrap());
    let code = lines.collect::<Vec<_>>().join("\n");
    let mut found = Vec::new();
    for (word, up) in [
        ("crate::", own.len()),
        ("super::super::", 2),
        ("super::", 1),
    ] {
        for (at, _) in code.match_indices(word) {
            if code[..at].ends_with("super::") || code[at + word.len()..].starts_with("super::") {
                continue;
            }
            let before = own[..own.len().saturating_sub(up)].to_vec();
            paths_of(&code[at + word.len()..], &before, &mut found);
        }
    }
    found
}

#[test]
fn only_lease_and_once_import_each_other() {
    let folder = root().join("crates/pgonce/src");
    let mut modules = BTreeMap::new();
    for path in files("crates/pgonce/src", ".rs") {
        let file = path.strip_prefix(&folder).unwrap();
        let file = file.to_str().unwrap().to_owned();
        modules.insert(module_of(&file), (file, read(&path)));
    }
    let mut reached: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (own, (file, text)) in modules.iter().filter(|(_, (file, _))| file != "lib.rs") {
        let named = imports(text, own).into_iter().filter_map(|path| {
            let deepest = (1..=path.len())
                .rev()
                .find_map(|length| modules.get(&path[..length]));
            deepest.map(|(file, _)| file.as_str())
        });
        reached.insert(file, named.filter(|other| other != file).collect());
    }
    assert!(
        reached["once.rs"].contains("attempt.rs"),
        "{:?}",
        reached["once.rs"]
    );
    assert!(reached["queue/worker.rs"].contains("queue/job.rs"));
    loop {
        let before: usize = reached.values().map(BTreeSet::len).sum();
        for file in reached.clone().keys() {
            let further: BTreeSet<_> = reached[file]
                .iter()
                .filter_map(|next| reached.get(next))
                .flatten()
                .copied()
                .collect();
            reached.get_mut(file).unwrap().extend(further);
        }
        if before == reached.values().map(BTreeSet::len).sum::<usize>() {
            break;
        }
    }
    let circles = reached.iter().filter(|(file, all)| all.contains(*file));
    let circles: Vec<_> = circles.map(|(file, _)| *file).collect();
    assert_eq!(circles, ["lease.rs", "once.rs"]);
}
