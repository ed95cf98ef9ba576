//! As many types of users' own as a process may have, beside all shipped ones.

use std::sync::Arc;

use crate::fake_host::{Fake, host_type};
use cattlegrid_objects::{Registry, ScriptMethodId, Settings, TYPES_MAX, TypeSettings, VirtualKey, define};

#[test]
fn a_hundred_types() {
    let mut settings = Settings::default();
    let mut types = Vec::new();
    for place in 0..TYPES_MAX {
        let name = format!("t{place}");
        settings.types.push(TypeSettings::new(&name));
        types.push(host_type(&name, &["new", "m"]));
    }
    assert!(define("one_more", &[]).unwrap_err().contains("100 names of types"));
    let registry = Registry::with_host(settings, Some(Arc::new(Fake(types)))).unwrap();
    let mut numbers = Vec::new();
    for place in 0..TYPES_MAX {
        let name = format!("t{place}:m:k");
        let Some(VirtualKey::Call(call)) = registry.named(name.as_bytes()) else {
            panic!("{name} names no call")
        };
        let script = registry.script(call.method).unwrap();
        assert_eq!((script.object_type, script.method), (place, ScriptMethodId::Own(1)));
        assert_eq!(registry.type_name(call.type_id), format!("t{place}"));
        numbers.push(registry.number(call.method));
    }
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), TYPES_MAX);
    for name in ["quota:take:k:1:1:hour", "set:add:k:a", "queue:pop:k"] {
        assert!(
            matches!(registry.named(name.as_bytes()), Some(VirtualKey::Call(call)) if registry.script(call.method).is_none())
        );
    }
    assert!(registry.named(b"t100:m:k").is_none());
}
