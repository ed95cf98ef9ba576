//! Properties of states that hold for any table that can be kept, and for any bytes.
//!
//! The fuzz target `script_state` runs [`check`]; here seeds and proptest run it.

use mlua::Lua;

use super::{decode, encode, to_json};
use crate::names::Names;
use crate::testing::{FakeWorld, TestSetting};

/// Reads these bytes as a state, and checks that it is an error, or a state that is unchanged when it is
/// written and read again.
///
/// # Panics
/// The state differs.
pub(crate) fn check(bytes: &[u8]) {
    let (lua, names) = (Lua::new(), Names::new());
    for name in [&b"limit"[..], b"count", b"type"] {
        assert!(names.number(name).is_some(), "there is room");
    }
    let Ok((version, table)) = decode(&lua, bytes, &names, 1, 0) else { return };
    TestSetting::default().run(&mut FakeWorld::default(), || {
        let mut first = Vec::new();
        // Such bytes have a field twice, or names that our states cannot have.
        if encode(&lua, &table, version, &names, usize::MAX, &mut first).is_err() {
            return;
        }
        let (_, again) = decode(&lua, &first, &names, 1, 0).expect("it was written");
        let mut second = Vec::new();
        encode(&lua, &again, version, &names, usize::MAX, &mut second).expect("it was written before");
        assert_eq!(first, second, "writing is stable");
        let mut json = Vec::new();
        to_json(&first, &names, &mut json, &mut |handle, out| out.push(b'0' + handle.field % 10));
        let parsed: Result<serde_json::Value, _> = serde_json::from_slice(&json);
        assert!(parsed.is_ok(), "{parsed:?}: {}", String::from_utf8_lossy(&json));
    });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use mlua::{Table, Value};
    use proptest::prelude::*;

    use super::*;
    use crate::natives::FieldHandle;
    use crate::state::DEPTH_MAX;
    use crate::state::format::{StateHead, push_name, push_table};

    /// A value as the test knows it; numbers by their bits.
    #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
    enum PlainValue {
        Boolean(bool),
        Number(u64),
        String(Vec<u8>),
        Table(BTreeMap<PlainKey, Self>),
    }

    #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
    enum PlainKey {
        Number(u64),
        String(Vec<u8>),
    }

    fn number() -> impl Strategy<Value = f64> {
        let exact = 9_007_199_254_740_992.0;
        let edges = vec![
            0.0,
            -0.0,
            1.0,
            -1.0,
            127.0,
            128.0,
            255.0,
            256.0,
            0.1,
            f64::MAX,
            f64::MIN_POSITIVE,
            f64::INFINITY,
            f64::NEG_INFINITY,
            exact,
            -exact,
            exact - 1.0,
            exact * 2.0,
        ];
        prop_oneof![prop::sample::select(edges), any::<i32>().prop_map(f64::from), any::<f64>()]
    }

    fn key() -> impl Strategy<Value = PlainKey> {
        // A key is never NaN, and -0 is the key 0.
        let usable = |number: f64| if number.is_nan() { 0.5 } else { number + 0.0 };
        prop_oneof![
            3 => (1..6_u8).prop_map(|item| PlainKey::Number(f64::from(item).to_bits())),
            1 => number().prop_map(move |number| PlainKey::Number(usable(number).to_bits())),
            3 => "[a-z_]{0,6}".prop_map(|name| PlainKey::String(name.into_bytes())),
            1 => prop::collection::vec(any::<u8>(), 0..40).prop_map(PlainKey::String),
        ]
    }

    fn plain() -> impl Strategy<Value = PlainValue> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(PlainValue::Boolean),
            number().prop_map(|number| PlainValue::Number(number.to_bits())),
            prop::collection::vec(any::<u8>(), 0..40).prop_map(PlainValue::String),
        ];
        leaf.prop_recursive(5, 60, 12, |inner| {
            prop::collection::btree_map(key(), inner, 0..12).prop_map(PlainValue::Table)
        })
    }

    fn table() -> impl Strategy<Value = BTreeMap<PlainKey, PlainValue>> {
        prop::collection::btree_map(key(), plain(), 0..20)
    }

    fn key_value(lua: &Lua, key: &PlainKey) -> Value {
        match key {
            PlainKey::Number(bits) => Value::Number(f64::from_bits(*bits)),
            PlainKey::String(string) => Value::String(lua.create_string(string).unwrap()),
        }
    }

    /// The table, its entries set in another order for each `turn`.
    fn build(lua: &Lua, entries: &BTreeMap<PlainKey, PlainValue>, turn: usize) -> Table {
        let table = lua.create_table().unwrap();
        let mut order: Vec<_> = entries.iter().collect();
        if !order.is_empty() {
            let by = turn % order.len();
            order.rotate_left(by);
        }
        if turn % 2 == 1 {
            order.reverse();
        }
        for (key, value) in order {
            let value = match value {
                PlainValue::Boolean(value) => Value::Boolean(*value),
                PlainValue::Number(bits) => Value::Number(f64::from_bits(*bits)),
                PlainValue::String(string) => Value::String(lua.create_string(string).unwrap()),
                PlainValue::Table(inner) => Value::Table(build(lua, inner, turn)),
            };
            table.raw_set(key_value(lua, key), value).unwrap();
        }
        table
    }

    fn read(table: &Table) -> BTreeMap<PlainKey, PlainValue> {
        let pairs = table.pairs::<Value, Value>().map(|pair| {
            let (key, value) = pair.unwrap();
            let key = match key {
                Value::Integer(number) => PlainKey::Number((number as f64).to_bits()),
                Value::Number(number) => PlainKey::Number((number + 0.0).to_bits()),
                Value::String(string) => PlainKey::String(string.as_bytes().to_vec()),
                other => panic!("a key {other:?}"),
            };
            let value = match value {
                Value::Boolean(value) => PlainValue::Boolean(value),
                Value::Integer(number) => PlainValue::Number((number as f64).to_bits()),
                Value::Number(number) => PlainValue::Number(number.to_bits()),
                Value::String(string) => PlainValue::String(string.as_bytes().to_vec()),
                Value::Table(inner) => PlainValue::Table(read(&inner)),
                other => panic!("a value {other:?}"),
            };
            (key, value)
        });
        pairs.collect()
    }

    fn bytes_of(lua: &Lua, names: &Names, table: &Table, state_max: usize) -> Result<Vec<u8>, String> {
        let mut out = b"before".to_vec();
        let run = || encode(lua, table, 3, names, state_max, &mut out);
        let result = TestSetting::default().run(&mut FakeWorld::default(), run).0;
        assert_eq!(&out[..6], b"before");
        result.map(|_| out.split_off(6)).inspect_err(|_| ())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn what_is_written_is_read(model in table(), turn in any::<u16>()) {
            let (lua, names) = (Lua::new(), Names::new());
            let bytes = bytes_of(&lua, &names, &build(&lua, &model, 0), usize::MAX).unwrap();
            let other = build(&lua, &model, usize::from(turn));
            prop_assert_eq!(&bytes, &bytes_of(&lua, &names, &other, usize::MAX).unwrap());
            let (version, table) = decode(&lua, &bytes, &names, 1, 0).unwrap();
            prop_assert_eq!(version, 3);
            prop_assert_eq!(read(&table), model);
            prop_assert_eq!(&bytes, &bytes_of(&lua, &names, &table, usize::MAX).unwrap());
            check(&bytes);
        }

        #[test]
        fn any_bytes_are_a_state_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            check(&bytes);
        }

        #[test]
        fn changed_states(model in table(), at in any::<prop::sample::Index>(), to in any::<u8>(), cut in any::<prop::sample::Index>()) {
            let (lua, names) = (Lua::new(), Names::new());
            let mut bytes = bytes_of(&lua, &names, &build(&lua, &model, 0), usize::MAX).unwrap();
            let at = at.index(bytes.len());
            bytes[at] = to;
            check(&bytes);
            check(&bytes[..cut.index(bytes.len())]);
        }
    }

    #[test]
    fn a_count_that_lies_takes_no_memory() {
        // An array of 2^35 items, and of 2^32 entries.
        for bytes in
            [&[1, 0xc4, 0xff, 0xff, 0xff, 0xff, 0x7f, 0][..], &[1, 0xc4, 0, 0xff, 0xff, 0xff, 0xff, 0x0f]]
        {
            let lua = Lua::new();
            let before = lua.used_memory();
            assert!(decode(&lua, bytes, &Names::new(), 1, 0).is_err());
            assert!(lua.used_memory() < before + 10_000);
        }
    }

    #[test]
    fn a_name_that_is_not_known_is_an_error() {
        let mut bytes = vec![1];
        push_table(&mut bytes, 0, 1);
        push_name(&mut bytes, 5);
        bytes.push(1);
        assert!(decode(&Lua::new(), &bytes, &Names::new(), 1, 0).is_err());
    }

    #[test]
    fn sixteen_tables_within_each_other() {
        let (lua, names) = (Lua::new(), Names::new());
        let nested = |count: usize| -> Table {
            let source = format!("return {}{}", "{a = ".repeat(count), "1".to_owned() + &"}".repeat(count));
            lua.load(source).eval().unwrap()
        };
        let bytes = bytes_of(&lua, &names, &nested(DEPTH_MAX), usize::MAX).unwrap();
        let (_, table) = decode(&lua, &bytes, &names, 1, 0).unwrap();
        assert_eq!(read(&table), read(&nested(DEPTH_MAX)));
        let path = vec!["a"; DEPTH_MAX].join(".");
        assert_eq!(
            bytes_of(&lua, &names, &nested(DEPTH_MAX + 1), usize::MAX).unwrap_err(),
            format!("field '{path}' is table 17 within tables: 16 can be kept")
        );
        let mut deep = vec![1];
        deep.extend([0xb1].repeat(DEPTH_MAX + 1));
        deep.push(0xa0);
        assert!(decode(&lua, &deep, &names, 1, 0).is_err());
    }

    #[test]
    fn the_longest_state() {
        let (lua, names) = (Lua::new(), Names::new());
        let table: Table = lua.load("return {text = string.rep('x', 1000)}").eval().unwrap();
        let len = bytes_of(&lua, &names, &table, usize::MAX).unwrap().len();
        assert_eq!(bytes_of(&lua, &names, &table, len).unwrap().len(), len);
        assert_eq!(
            bytes_of(&lua, &names, &table, len - 1).unwrap_err(),
            format!("state too large ({len} bytes, state_max is {}): use cg.set/cg.map", len - 1)
        );
        assert!(bytes_of(&lua, &names, &table, 0).is_err());
    }

    #[test]
    fn one_string_many_times_is_not_written_to_its_end() {
        let (lua, names) = (Lua::new(), Names::new());
        let source = "local s, t = string.rep('x', 100000), {}; for i = 1, 100000 do t['k' .. i] = s end; return {t = t}";
        let table: Table = lua.load(source).eval().unwrap();
        let mut out = Vec::new();
        let run = || encode(&lua, &table, 1, &names, 65_536, &mut out).unwrap_err();
        let text = TestSetting::default().run(&mut FakeWorld::default(), run).0;
        assert!(
            text.starts_with("state too large (more than 1") && text.ends_with("use cg.set/cg.map"),
            "{text}"
        );
        assert!(out.is_empty() && out.capacity() < 4 << 20);
    }

    #[test]
    fn fields_go_with_the_state() {
        let (lua, names) = (Lua::new(), Names::new());
        let table = lua.create_table().unwrap();
        let handle = |field: u8| Value::LightUserData(FieldHandle { object: 0, field, kind: 2 }.to_light(1));
        table.set("seen", handle(9)).unwrap();
        table.set("all", lua.create_sequence_from([handle(3), handle(250)]).unwrap()).unwrap();
        let mut out = Vec::new();
        let run = || encode(&lua, &table, 1, &names, 65_536, &mut out).unwrap();
        let fields = TestSetting::default().run(&mut FakeWorld::default(), run).0;
        assert_eq!(fields.list, [(3, 2), (9, 2), (250, 2)]);
        assert_eq!(super::super::fields(&out), fields);
        let (_, again) = decode(&lua, &out, &names, 77, 1).unwrap();
        let Value::LightUserData(light) = again.get("seen").unwrap() else { panic!("a handle") };
        assert_eq!(FieldHandle::from_light(light, 77), Some(FieldHandle { object: 1, field: 9, kind: 2 }));
        let mut json = Vec::new();
        to_json(&out, &names, &mut json, &mut |handle, out| {
            out.extend(format!("[{}]", handle.field).bytes());
        });
        assert_eq!(String::from_utf8(json).unwrap(), r#"{"all":[[3],[250]],"seen":[9]}"#);
    }

    #[test]
    fn fields_that_cannot_be_kept() {
        let (lua, names) = (Lua::new(), Names::new());
        let light = |object: u8, call: u64| {
            Value::LightUserData(FieldHandle { object, field: 1, kind: 2 }.to_light(call))
        };
        let refused = |value: Value| {
            let table = lua.create_table().unwrap();
            table.set("a", value).unwrap();
            bytes_of(&lua, &names, &table, usize::MAX).unwrap_err()
        };
        assert_eq!(refused(light(0, 2)), "field 'a' is a collection of another call");
        assert_eq!(refused(light(1, 1)), "field 'a' is a collection of another object: copy its members");
        assert_eq!(refused(Value::NULL), "field 'a' is cg.json.null: a state has none");
        let twice = lua.create_sequence_from([light(0, 1), light(0, 1)]).unwrap();
        assert_eq!(
            refused(Value::Table(twice)),
            "field 'a[2]' is the same as field 'a[1]': an object holds each table and each collection once"
        );
    }

    #[test]
    fn a_table_of_many_names() {
        // The dictionary is full after 128: the others are kept as strings, and all are found again.
        let (lua, names) = (Lua::new(), Names::new());
        let source = "local t = {}; for i = 1, 300 do t['name' .. i] = i end; return t";
        let table: Table = lua.load(source).eval().unwrap();
        let bytes = bytes_of(&lua, &names, &table, usize::MAX).unwrap();
        let (_, again) = decode(&lua, &bytes, &names, 1, 0).unwrap();
        assert_eq!(read(&again), read(&table));
        assert_eq!(bytes, bytes_of(&lua, &names, &table, usize::MAX).unwrap());
    }

    #[test]
    fn little_memory_is_an_error() {
        let (lua, names) = (Lua::new(), Names::new());
        let table: Table =
            lua.load("local t = {}; for i = 1, 2000 do t[i] = {i} end; return t").eval().unwrap();
        let bytes = bytes_of(&lua, &names, &table, usize::MAX).unwrap();
        drop(table);
        lua.gc_collect().unwrap();
        let used = lua.used_memory();
        lua.set_memory_limit(used + 20_000).unwrap();
        let error = decode(&lua, &bytes, &names, 1, 0).unwrap_err();
        assert!(matches!(error, mlua::Error::MemoryError(_)), "{error:?}");
        lua.set_memory_limit(0).unwrap();
        assert!(decode(&lua, &bytes, &names, 1, 0).is_ok());
    }

    #[test]
    fn heads() {
        let tokens = [7; 16];
        let head = StateHead { version: u16::MAX, tokens: &tokens, fields: &[4, 2] };
        let mut bytes = Vec::new();
        head.push(&mut bytes);
        bytes.push(0xa0);
        assert_eq!(super::super::tokens(&bytes), tokens);
        assert_eq!(super::super::fields(&bytes).list, [(4, 2)]);
        assert_eq!(decode(&Lua::new(), &bytes, &Names::new(), 1, 0).unwrap().0, u16::MAX);
        for len in 0..bytes.len() {
            assert!(decode(&Lua::new(), &bytes[..len], &Names::new(), 1, 0).is_err(), "{len} bytes");
        }
        bytes.push(0);
        assert!(decode(&Lua::new(), &bytes, &Names::new(), 1, 0).is_err(), "nothing may follow");
        assert!(decode(&Lua::new(), &[0x80, 0x80, 4, 0xa0], &Names::new(), 1, 0).is_err(), "version 65536");
    }
}
