//! Tables of states that a VM has seen before, and that it sees first: they are the same.

use crate::harness::Bench;

/// Sets and takes out fields, and answers what there is, in the order in which the VM has it.
const FIELDS: &str = "
    local T = {}
    local function shown(self)
        local all = {}
        for key, value in pairs(self) do
            table.insert(all, `{key}={if type(value) == 'table' then #value else value}`)
        end
        return table.concat(all, ' ')
    end
    function T.new() return {a = 1, b = 'two', c = {3, {x = 4}}} end
    function T.set(self, ...)
        for _, name in {...} do self[name] = (tonumber(self[name]) or 0) + 1 end
        return shown(self)
    end
    function T.cut(self, ...)
        for _, name in {...} do self[name] = nil end
        return shown(self)
    end
    function T.swap(self, old, new)
        self[new], self[old] = self[old], nil
        return shown(self)
    end
    function T.item(self) self[1] = 'one' return shown(self) end
    function T.uncut(self) self[1] = nil return shown(self) end
    function T.float(self) self.a = -1.5 self.b = 2^53 self.c = -(2^40) return shown(self) end
    function T.many(self) for n = 1, 20 do self['n' .. n] = n end return shown(self) end
    function T.few(self) for n = 3, 20 do self['n' .. n] = nil end return shown(self) end
    function T.fail(self) self.a = nil self.z = 1 error('broken') end
    T.read = { all = shown }
    return T";

/// Each state is read twice by one VM, and by a new one; `learnt` has seen all that were before.
#[test]
fn a_vm_that_has_seen_a_state_and_a_new_one_agree() {
    let mut learnt = Bench::new(FIELDS);
    assert_eq!(learnt.call("new"), "CREATED");
    let calls = [
        "all",
        "set:a",
        "all",
        "set:a:b",
        "cut:b",
        "all",
        "set:d",
        "all",
        "swap:d:e",
        "all",
        "swap:e:b",
        "all",
        "item",
        "all",
        "set:a",
        "uncut",
        "set:not a name",
        "all",
        "cut:not a name",
        "set:end",
        "all",
        "swap:end:d",
        "cut:a:b:c:d",
        "all",
        "set:c",
        "set:b",
        "set:a",
        "float",
        "all",
        "many",
        "all",
        "set:n20",
        "few",
        "all",
        "fail",
        "all",
        "cut:n1:n2",
        "all",
        "swap:a:z",
        "swap:z:a",
        "all",
    ];
    for (turn, call) in calls.iter().cycle().take(2 * calls.len()).enumerate() {
        let mut new = Bench::new(FIELDS);
        new.state = learnt.state.clone();
        let (reply, again) = (learnt.call(call), new.call(call));
        assert_eq!(reply, again, "{turn}: {call}");
        assert_eq!(learnt.state, new.state, "{turn}: {call}");
    }
    assert_eq!(learnt.call("all").split(' ').count(), 3);
}

/// What an object had is not in another one with the same fields.
#[test]
fn a_template_has_no_values() {
    let mut bench = Bench::new(FIELDS);
    for (made, text) in [("new", "a=1 b=two c=2"), ("new", "a=1 b=two c=2")] {
        assert_eq!(bench.call(made), "CREATED");
        let mut shown: Vec<String> = bench.call("all").split(' ').map(str::to_owned).collect();
        shown.sort();
        assert_eq!(shown.join(" "), text);
        assert!(bench.call("set:a:b").contains("a=2"));
        assert!(bench.call("set:a:b").contains("a=3"));
        assert!(bench.call("float").contains("a=-1.5"));
    }
}
