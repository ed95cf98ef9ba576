//! Objects: calls by plain keys, and what becomes of their requests.

use std::sync::Arc;

use cattlegrid_objects::{Registry, Settings};

use crate::world::World;

fn world() -> World {
    let world = World::new(&[]);
    world.engine.set_objects(Some(Arc::new(Registry::new(Settings::default()).unwrap())));
    world
}

#[test]
fn a_call_by_a_plain_key() {
    let mut world = world();
    let client = world.connect();
    world.expect(client, "get counter:add:k:5|", "VALUE counter:add:k:5 0 1|5|END|");
    world.expect(client, "get counter:add:k:5|", "VALUE counter:add:k:5 0 2|10|END|");
    world.expect(
        client,
        "get a counter:add:k:1 b counter:add:k:1|",
        "VALUE counter:add:k:1 0 2|11|VALUE counter:add:k:1 0 2|12|END|",
    );
    world.expect(client, "mg counter:add:k:-2 v s f|", "VA 2 s2 f0|10|");
    world.expect(client, "mg counter::k v Aadd:7|", "VA 2|17|");
    world.expect(client, "ms counter::k 1 Aadd v|3|", "VA 2|20|");
    world.expect(client, "ms counter::k 1 Aadd|3|", "HD|");
    world.expect(client, "get counter:exists:k|", "VALUE counter:exists:k 0 6|EXISTS|END|");
    world.expect(client, "delete counter::k|", "DELETED|");
    world.expect(client, "delete counter::k|", "NOT_FOUND|");
    world.expect(client, "get counter:dump:k|", "END|");
}

#[test]
fn names_of_calls_are_no_keys() {
    let mut world = world();
    let client = world.connect();
    let refusal = "CLIENT_ERROR counter:add is a method|";
    for line in [
        "set counter:add:k:1 0 0 1|x|",
        "ms counter:add:k:1 1|x|",
        "incr counter:add:k:1 1|",
        "ma counter:add:k:1|",
        "touch counter:add:k:1 5|",
        "gat 5 counter:add:k:1|",
        "mg counter:add:k:1 v T5|",
        "delete counter:add:k:1|",
        "md counter:add:k:1|",
    ] {
        world.expect(client, line, refusal);
    }
    world.expect(client, "get counter:add:k:0|", "VALUE counter:add:k:0 0 1|0|END|");
    world.expect(client, "set print:1 0 0 1|x|", "STORED|");
    world.expect(client, "set counter:5 0 0 1|x|", "STORED|");
    world.expect(client, "get print:1 counter:5|", "VALUE print:1 0 1|x|VALUE counter:5 0 1|x|END|");
}
