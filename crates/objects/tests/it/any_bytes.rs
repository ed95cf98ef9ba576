//! Collections with states and arguments of any bytes: each call is answered.

use crate::collections::{Kept, World};
use cattlegrid_objects::Registry;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_bytes_are_answered(
        method in 0..20_usize,
        arguments in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..5),
        state in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        for own in ["set", "map", "board", "queue"] {
            let mut world = World::new();
            let methods: Vec<_> = world.registry.types().find(|one| one.name == own).into_iter()
                .flat_map(Registry::methods).map(|method| method.name).collect();
            let type_id = world.registry.types().find(|one| one.name == own).unwrap().id;
            world.objects.insert((type_id, b"k".to_vec()), Kept::Bytes(state.clone()));
            let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
            world.ask(own, methods[method % methods.len()], b"k", &arguments);
        }
    }
}
