//! Names of objects and of calls: which object they mean.

use cattlegrid_objects::{Registry, Settings, VirtualKey};
use proptest::prelude::*;

/// The key of the object that a name means.
fn key_of(registry: &Registry, name: &[u8]) -> Vec<u8> {
    match registry.named(name).expect("a name") {
        VirtualKey::Object { key, .. } => key.into_owned(),
        VirtualKey::Call(name) => registry.split(&name, &mut Vec::new()).expect("few arguments").0.to_vec(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    /// `registry.object_name` is what lists and events show.
    #[test]
    fn a_call_and_the_shown_name_mean_the_same_object(part in "[a%:325A]{1,9}") {
        let registry = Registry::new(Settings { prefix: (*b"p:").into(), ..Settings::default() }).unwrap();
        let type_id = registry.types().find(|one| one.name == "set").unwrap().id;
        let key = key_of(&registry, format!("p:set::{part}").as_bytes());
        let shown = registry.object_name(type_id, &key).unwrap();
        prop_assert_eq!(key_of(&registry, &shown), key.clone());
        let in_call = part.replace(':', "%3A");
        prop_assert_eq!(key_of(&registry, format!("p:set:add:{in_call}:x").as_bytes()), key);
    }
}
