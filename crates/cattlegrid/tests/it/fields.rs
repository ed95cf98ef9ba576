//! Collections as fields of users' types in the built server, while several clients change one object.

#![cfg(feature = "scripts")]
#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use std::fs;
use std::path::Path;

use cattlegrid_load::harness::{Client, Server, Start};

/// Each member is in all collections. `look` finds that out in several reads.
const CROWD: &str = "
local Crowd = { create = {} }
function Crowd.new()
    return { members = cg.set(), scores = cg.zset(), places = cg.map(), calls = 0 }
end
function Crowd.add(self, name: string)
    self.calls += 1
    assert(self.members:add(name), 'it is there')
    self.scores:add(name, self.calls)
    self.places:put(name, self.calls)
    return self.calls
end
function Crowd.look(self)
    local count = 0
    for name, score in self.scores:each() do
        count += 1
        assert(self.members:exist(name) and self.places:get(name) == tostring(score), name)
    end
    assert(count == self.calls and #self.members:getall() == count and self.places:count() == count)
    return count
end
return Crowd
";
const CLIENTS: usize = 4;
const CALLS: usize = 150;

/// The number that a call answers.
fn number(client: &mut Client, name: &str) -> usize {
    let values = client.get([name]).unwrap();
    assert_eq!(values.len(), 1, "{name}");
    values[0].1.parse().unwrap()
}

#[test]
fn an_object_that_many_change_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("crowd.luau"), CROWD).unwrap();
    let rules = format!("[objects]\ndir = {:?}\ntime_limit = \"1s\"\n", dir.path().to_str().unwrap());
    let program = Path::new(env!("CARGO_BIN_EXE_cattlegrid"));
    let words = ["-p", "-1", "-u", "root", "-t", "4", "-m", "64"];
    let server = Server::start(&Start { rules: Some(&rules), ..Start::new(program, &words) }).unwrap();
    std::thread::scope(|scope| {
        for place in 0..CLIENTS {
            let mut client = server.connect().unwrap();
            scope.spawn(move || {
                let mut seen = 0;
                for call in 0..CALLS {
                    let made = number(&mut client, &format!("crowd:add:k:{place}-{call}"));
                    assert!(made > seen, "{made} after {seen}");
                    seen = made;
                    if call % 20 == place {
                        let count = number(&mut client, "crowd:look:k");
                        assert!(count >= seen, "{count} after {seen}");
                    }
                }
            });
        }
    });
    let mut client = server.connect().unwrap();
    assert_eq!(number(&mut client, "crowd:look:k"), CLIENTS * CALLS);
}
