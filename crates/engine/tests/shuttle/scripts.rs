//! Methods of hosts that meet on one object, which run without a lock.

use crate::script_host::TestHost;
use crate::world::World;
use crate::{act, assert_quiet, explore, hear, policy, registry, together, walk_all, workers};

/// Workers on which `tally` is switched on, with an object of this number.
fn tallies<const N: usize>(number: &str) -> [World; N] {
    let mut all = workers(policy());
    all[0].engine.set_objects(Some(TestHost::new(1).registry(|_| ())));
    walk_all(&all[0]);
    let client = all[0].connect();
    all[0].expect(client, &format!("mg tally:new:k:{number} v|"), "VA 7|CREATED|");
    all
}

/// All calls have ended, and the wakes are delivered.
fn end_calls(all: &mut [World]) {
    hear(all);
    assert!(all.iter_mut().all(|world| !world.go_on()), "the worker that has a call goes on with it");
    hear(all);
}

/// Two scripts on one object: one of them may lose it, and both take effect.
#[test]
fn two_scripts() {
    explore(|| {
        let mut all: [World; 2] = tallies("5");
        let clients = all.each_mut().map(World::connect);
        let add =
            |client: u64, by: &'static str| act(move |w| w.send(client, &format!("mg tally:add:k:{by} v|")));
        let mut all = together(all, [add(clients[0], "10"), add(clients[1], "100")]);
        end_calls(&mut all);
        let replies = [all[0].replies(clients[0]), all[1].replies(clients[1])];
        let orders = [["VA 2|15|", "VA 3|115|"], ["VA 3|115|", "VA 3|105|"]];
        assert!(orders.iter().any(|order| replies == *order), "{replies:?}");
        all[0].expect(clients[0], "mg tally:get:k v|", "VA 3|115|");
        assert_quiet(&all);
    });
}

/// Three scripts: a run that has lost its object may find it busy.
#[test]
fn three_scripts() {
    explore(|| {
        let mut all: [World; 3] = tallies("0");
        let clients = all.each_mut().map(World::connect);
        let acts = clients.map(|client| act(move |w| w.send(client, "mg tally:add:k:1 v|")));
        let mut all = together(all, acts);
        end_calls(&mut all);
        let mut replies: Vec<_> =
            all.iter_mut().zip(clients).map(|(world, client)| world.replies(client)).collect();
        replies.sort();
        assert_eq!(replies, ["VA 1|1|", "VA 1|2|", "VA 1|3|"]);
        assert_quiet(&all);
    });
}

/// A script, and something that ends its object: one comes after the other.
fn script_and(end: impl Fn(&mut World, u64) + Copy + Send + Sync + 'static) {
    explore(move || {
        let mut all: [World; 2] = tallies("5");
        let clients = all.each_mut().map(World::connect);
        let acts =
            [act(move |w| w.send(clients[0], "mg tally:add:k:1 v|")), act(move |w| end(w, clients[1]))];
        let mut all = together(all, acts);
        end_calls(&mut all);
        let reply = all[0].replies(clients[0]);
        let left = all[0].ask(clients[0], "mg tally:get:k v|");
        let orders = [("VA 1|6|", "EN|"), ("VA 1|1|", "VA 1|1|")];
        assert!(orders.contains(&(&*reply, &*left)), "{reply} {left}");
        assert_quiet(&all);
    });
}

#[test]
fn script_and_drop() {
    script_and(|world, client| world.send(client, "delete tally::k noreply|"));
}

#[test]
fn script_and_flush() {
    script_and(|world, _| world.flush());
}

/// Expiry is no change of the state: the script's change keeps it.
#[test]
fn script_and_ttl() {
    explore(|| {
        let mut all: [World; 2] = tallies("5");
        let clients = all.each_mut().map(World::connect);
        let acts = [
            act(move |w| w.send(clients[0], "mg tally:add:k:1 v|")),
            act(move |w| w.send(clients[1], "mg tally:ttl:k:60 v|")),
        ];
        let mut all = together(all, acts);
        end_calls(&mut all);
        assert_eq!(all[0].replies(clients[0]), "VA 1|6|");
        assert_eq!(all[1].replies(clients[1]), "VA 2|60|");
        all[0].expect(clients[0], "mg tally:get:k v t|", "VA 1 t60|6|");
        assert_quiet(&all);
    });
}

/// A script, and its type, which is switched off.
#[test]
fn script_and_types() {
    explore(|| {
        let [mut w0, w1, w2]: [World; 3] = tallies("5");
        let client = w0.connect();
        let mut all = together(
            [w0, w1, w2],
            [
                act(move |w| w.send(client, "mg tally:add:k:1 v|")),
                act(|w| w.engine.set_objects(Some(registry(&["counter"])))),
                act(|w| _ = w.engine.tick(w.now())),
            ],
        );
        walk_all(&all[0]);
        end_calls(&mut all);
        let reply = all[0].replies(client);
        assert!(["VA 1|6|", "EN|", "END|"].contains(&&*reply), "{reply}");
        assert_eq!(all[0].engine.usage().0.objects, 0, "it is behind the walk");
        assert_quiet(&all);
    });
}
