//! A serializer that refuses what serde_json would change without a word: NaN and the infinities, which
//! it writes as null, and integers of more than 64 bits, which come back as doubles.

use serde::ser::{self, Error as _, Serialize, Serializer};

/// Passes everything on to another serializer, except numbers that JSON cannot carry.
pub(super) struct Strict<S>(pub(super) S);

/// A value inside of a sequence, map or variant: serialized through [`Strict`] as well.
struct Inner<'a, T: ?Sized>(&'a T);

impl<T: Serialize + ?Sized> Serialize for Inner<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(Strict(serializer))
    }
}

macro_rules! pass_on {
    ($($method:ident($($name:ident: $type:ty),*) -> $ok:ident;)+) => { $(
        fn $method(self, $($name: $type),*) -> Result<Self::$ok, Self::Error> {
            self.0.$method($($name),*)
        }
    )+ };
}

macro_rules! open {
    ($($method:ident($($name:ident: $type:ty),*) -> $compound:ident;)+) => { $(
        fn $method(self, $($name: $type),*) -> Result<Self::$compound, Self::Error> {
            self.0.$method($($name),*).map(Strict)
        }
    )+ };
}

impl<S: Serializer> Serializer for Strict<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Strict<S::SerializeSeq>;
    type SerializeTuple = Strict<S::SerializeTuple>;
    type SerializeTupleStruct = Strict<S::SerializeTupleStruct>;
    type SerializeTupleVariant = Strict<S::SerializeTupleVariant>;
    type SerializeMap = Strict<S::SerializeMap>;
    type SerializeStruct = Strict<S::SerializeStruct>;
    type SerializeStructVariant = Strict<S::SerializeStructVariant>;

    fn serialize_f64(self, v: f64) -> Result<S::Ok, S::Error> {
        if v.is_finite() {
            self.0.serialize_f64(v)
        } else {
            Err(S::Error::custom(format_args!("JSON has no number {v}")))
        }
    }

    /// By its shortest decimal, as serde_json writes it into a text: 0.1, not 0.10000000149011612.
    fn serialize_f32(self, v: f32) -> Result<S::Ok, S::Error> {
        let v = v.to_string().parse().map_err(S::Error::custom)?;
        self.serialize_f64(v)
    }

    fn serialize_i128(self, v: i128) -> Result<S::Ok, S::Error> {
        match (i64::try_from(v), u64::try_from(v)) {
            (Ok(v), _) => self.0.serialize_i64(v),
            (_, Ok(v)) => self.0.serialize_u64(v),
            _ => Err(S::Error::custom(format_args!(
                "{v} has more than 64 bits: send it as a string"
            ))),
        }
    }

    fn serialize_u128(self, v: u128) -> Result<S::Ok, S::Error> {
        match u64::try_from(v) {
            Ok(v) => self.0.serialize_u64(v),
            Err(_) => Err(S::Error::custom(format_args!(
                "{v} has more than 64 bits: send it as a string"
            ))),
        }
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.0.serialize_some(&Inner(value))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.0.serialize_newtype_struct(name, &Inner(value))
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.0
            .serialize_newtype_variant(name, index, variant, &Inner(value))
    }

    pass_on! {
        serialize_bool(v: bool) -> Ok;
        serialize_i8(v: i8) -> Ok;
        serialize_i16(v: i16) -> Ok;
        serialize_i32(v: i32) -> Ok;
        serialize_i64(v: i64) -> Ok;
        serialize_u8(v: u8) -> Ok;
        serialize_u16(v: u16) -> Ok;
        serialize_u32(v: u32) -> Ok;
        serialize_u64(v: u64) -> Ok;
        serialize_char(v: char) -> Ok;
        serialize_str(v: &str) -> Ok;
        serialize_bytes(v: &[u8]) -> Ok;
        serialize_none() -> Ok;
        serialize_unit() -> Ok;
        serialize_unit_struct(name: &'static str) -> Ok;
        serialize_unit_variant(name: &'static str, index: u32, variant: &'static str) -> Ok;
    }

    open! {
        serialize_seq(len: Option<usize>) -> SerializeSeq;
        serialize_tuple(len: usize) -> SerializeTuple;
        serialize_tuple_struct(name: &'static str, len: usize) -> SerializeTupleStruct;
        serialize_tuple_variant(name: &'static str, index: u32, variant: &'static str, len: usize) -> SerializeTupleVariant;
        serialize_map(len: Option<usize>) -> SerializeMap;
        serialize_struct(name: &'static str, len: usize) -> SerializeStruct;
        serialize_struct_variant(name: &'static str, index: u32, variant: &'static str, len: usize) -> SerializeStructVariant;
    }
}

macro_rules! compound {
    ($($trait:ident { $($method:ident($($name:ident: $type:ty),*);)+ })+) => { $(
        impl<S: ser::$trait> ser::$trait for Strict<S> {
            type Ok = S::Ok;
            type Error = S::Error;

            $(fn $method<T: Serialize + ?Sized>(&mut self, $($name: $type,)* value: &T) -> Result<(), S::Error> {
                self.0.$method($($name,)* &Inner(value))
            })+

            fn end(self) -> Result<S::Ok, S::Error> {
                self.0.end()
            }
        }
    )+ };
}

compound! {
    SerializeSeq { serialize_element(); }
    SerializeTuple { serialize_element(); }
    SerializeTupleStruct { serialize_field(); }
    SerializeTupleVariant { serialize_field(); }
    SerializeMap { serialize_key(); serialize_value(); }
    SerializeStruct { serialize_field(key: &'static str); }
    SerializeStructVariant { serialize_field(key: &'static str); }
}
