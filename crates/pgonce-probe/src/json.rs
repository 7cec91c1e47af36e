//! JSON objects, written otherwise or changed in one place.

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

/// So many places of one document are changed, one after the other.
const MOST_PLACES: usize = 12;

/// An object's members in the order in which they are written.
#[derive(Debug)]
pub(super) struct Object(Vec<(String, Value)>);

impl Object {
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        serde_json::from_slice(body).ok()
    }

    /// The same object: members in reverse order, other white space.
    pub(super) fn rewritten(&self) -> Bytes {
        let members = self.0.iter().rev();
        let members: Vec<_> = members
            .map(|(name, value)| format!("{} :  {value}", Value::from(name.as_str())))
            .collect();
        format!("{{\n  {}\n}}", members.join(" ,\n  ")).into()
    }

    /// A document for each number, text and truth value in it that differs from this one there only,
    /// with the JSON pointer to the place.
    pub(super) fn changed_in_one_place(&self) -> Vec<(String, Bytes)> {
        let whole = self.value();
        let mut places = Vec::new();
        leaves(&whole, String::new(), &mut places);
        let changed = places.into_iter().filter_map(|place| {
            let mut document = whole.clone();
            let leaf = document.pointer_mut(&place)?;
            *leaf = other(leaf)?;
            Some((place, document.to_string().into()))
        });
        changed.take(MOST_PLACES).collect()
    }

    /// Documents with a member of another type than the reader expects.
    pub(super) fn of_wrong_types(&self) -> Vec<Bytes> {
        let mut documents = Vec::new();
        for (name, value) in &self.0 {
            for wrong in [Value::Null, Value::Bool(true), Value::Array(Vec::new())] {
                if std::mem::discriminant(value) != std::mem::discriminant(&wrong) {
                    let mut document = self.value();
                    document[name] = wrong;
                    documents.push(document.to_string().into());
                }
            }
        }
        documents.truncate(MOST_PLACES);
        documents
    }

    fn value(&self) -> Value {
        Value::Object(self.0.iter().cloned().collect())
    }
}

fn leaves(value: &Value, place: String, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let name = name.replace('~', "~0").replace('/', "~1");
                leaves(member, format!("{place}/{name}"), found);
            }
        }
        Value::Array(items) => {
            for (n, item) in items.iter().enumerate() {
                leaves(item, format!("{place}/{n}"), found);
            }
        }
        _ => found.push(place),
    }
}

/// Another value of the same form: an id stays an id.
fn other(value: &Value) -> Option<Value> {
    match value {
        Value::Bool(is) => Some(Value::Bool(!is)),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => Some(whole.checked_add(1)?.into()),
            None => Some((number.as_f64()? + 1.0).into()),
        },
        Value::String(text) => {
            let mut text = text.clone();
            let last = match text.pop() {
                None => 'x',
                Some(end @ ('9' | 'f' | 'z' | 'F' | 'Z')) => char::from_u32(u32::from(end) - 1)?,
                Some(end) if end.is_ascii_alphanumeric() => char::from_u32(u32::from(end) + 1)?,
                Some(end) => {
                    text.push(end);
                    'x'
                }
            };
            text.push(last);
            Some(text.into())
        }
        _ => None,
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Object;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Object(members))
            }
        }
        from.deserialize_map(Members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_written_otherwise_is_the_same_object() {
        let body = br#"{"b": {"y": 1, "x": [2.50, null]}, "a": "\"7"}"#;
        let again = Object::read(body).unwrap().rewritten();
        let parsed = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
        assert_eq!(parsed(body), parsed(&again));
        let text = std::str::from_utf8(&again).unwrap();
        assert!(text.find("\"a\"") < text.find("\"b\""), "{text}");
        assert!(Object::read(b"[1]").is_none() && Object::read(b"{").is_none());
    }

    #[test]
    fn each_place_is_changed_alone_and_keeps_its_form() {
        let object =
            Object::read(br#"{"n": 9, "f": 0.5, "s": ["a-7f", ""], "t": true, "z": null}"#);
        let changed = object.unwrap().changed_in_one_place();
        let observed: Vec<(&str, Value)> = changed
            .iter()
            .map(|(place, body)| {
                let document: Value = serde_json::from_slice(body).unwrap();
                (place.as_str(), document.pointer(place).unwrap().clone())
            })
            .collect();
        let expected = [
            ("/f", Value::from(1.5)),
            ("/n", 10.into()),
            ("/s/0", "a-7e".into()),
            ("/s/1", "x".into()),
            ("/t", false.into()),
        ];
        assert_eq!(observed, expected);
    }
}
