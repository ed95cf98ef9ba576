//! Numbers in arguments: one rule for all methods.

use crate::collections::{Answer, World};

/// Calls with a number that may have decimals or a sign, `N`.
const CALLS: &[&str] = &[
    "quota:new:q:N:hour",
    "quota:addandcheck:q:N",
    "quota:take:t:N:5:hour",
    "swcounter:new:w:N",
    "swcounter:add:s:N",
    "swcounter:getp:s:N",
    "set:random:m:N",
    "map:incr:h:k:N",
    "counter:add:c:N",
    "counter:set:c:N",
    "gcra:take:g:N:30:60",
    "bucket:take:b:N:1",
    "bucket:take:b:1:N",
    "sliding:hit:l:N:60s",
    "lock:take:o:a:N",
    "sem:take:e:a:N:30s",
    "board:add:r:m:N",
    "board:incr:r:m:N",
    "board:top:r:N",
    "board:range:r:N:5",
    "topk:new:p:N",
    "topk:hit:p:x:N",
    "bloom:new:f:N",
    "bloom:new:f:10:N",
    "recent:new:n:N",
    "queue:new:u:N",
    "counter:ttl:c:N",
];

#[test]
fn what_is_no_number() {
    let mut world = World::new();
    for made in [
        "quota:new:q:5:hour",
        "swcounter:new:s",
        "swcounter:add:s:1",
        "set:new:m",
        "set:put:m:a",
        "map:new:h",
        "counter:new:c",
        "topk:new:p",
        "board:add:r:m:1",
    ] {
        world.call(made);
    }
    for call in CALLS {
        for number in [".5", "5.", "+1", " 1", "0x1", "1_0", "", "-", "-.5", "+.5", "1e", "inf", "nan"] {
            let name = call.replace('N', number);
            let answer = world.call(&name);
            assert!(
                matches!(&answer, Answer::Error(text) if text.starts_with("CLIENT_ERROR ") && text.contains(" must be ")),
                "{name}: {answer:?}"
            );
        }
    }
}

#[test]
fn a_value_of_a_map_that_is_no_number_is_not_added_to() {
    let mut world = World::new();
    world.call("map:new:h");
    for value in ["+1", "1.0", ".5", ""] {
        world.call(&format!("map:put:h:k:{value}"));
        assert_eq!(
            world.call("map:incr:h:k"),
            Answer::Error(
                "CLIENT_ERROR map.incr: the value is not a whole number of 64 bits with a sign".to_owned()
            ),
            "{value}"
        );
    }
}
