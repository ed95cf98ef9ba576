//! How many arguments the functions of the libraries take.

/// Any number.
const MANY: usize = usize::MAX;

/// The function, the fewest and the most arguments.
static FUNCTIONS: &[(&str, usize, usize)] = &[
    ("assert", 1, MANY),
    ("bit32.arshift", 2, 2),
    ("bit32.bnot", 1, 1),
    ("bit32.byteswap", 1, 1),
    ("bit32.countlz", 1, 1),
    ("bit32.countrz", 1, 1),
    ("bit32.extract", 2, 3),
    ("bit32.lrotate", 2, 2),
    ("bit32.lshift", 2, 2),
    ("bit32.replace", 3, 4),
    ("bit32.rrotate", 2, 2),
    ("bit32.rshift", 2, 2),
    ("buffer.create", 1, 1),
    ("buffer.fromstring", 1, 1),
    ("buffer.len", 1, 1),
    ("buffer.tostring", 1, 1),
    ("cg.event", 1, 2),
    ("cg.expire_at", 0, 1),
    ("cg.fail", 1, 1),
    ("cg.get", 1, 1),
    ("cg.hash", 1, 1),
    ("cg.integer", 1, 3),
    ("cg.invalidate", 1, 1),
    ("cg.json.decode", 1, 1),
    ("cg.json.encode", 1, 1),
    ("cg.key", 0, 0),
    ("cg.load", 1, 1),
    ("cg.now", 0, 0),
    ("cg.now_ms", 0, 0),
    ("cg.number", 1, 3),
    ("cg.once", 1, 1),
    ("cg.set", 0, 3),
    ("cg.tag", 1, 1),
    ("cg.ttl", 0, 1),
    ("cg.value", 1, 2),
    ("error", 0, 2),
    ("getmetatable", 1, 1),
    ("ipairs", 1, 1),
    ("math.abs", 1, 1),
    ("math.atan2", 2, 2),
    ("math.ceil", 1, 1),
    ("math.clamp", 3, 3),
    ("math.exp", 1, 1),
    ("math.floor", 1, 1),
    ("math.fmod", 2, 2),
    ("math.log", 1, 2),
    ("math.max", 1, MANY),
    ("math.min", 1, MANY),
    ("math.pow", 2, 2),
    ("math.random", 0, 2),
    ("math.round", 1, 1),
    ("math.sign", 1, 1),
    ("math.sqrt", 1, 1),
    ("next", 1, 2),
    ("os.clock", 0, 0),
    ("os.date", 0, 2),
    ("os.difftime", 1, 2),
    ("os.time", 0, 1),
    ("pairs", 1, 1),
    ("pcall", 1, MANY),
    ("rawequal", 2, 2),
    ("rawget", 2, 2),
    ("rawlen", 1, 1),
    ("rawset", 3, 3),
    ("require", 1, 1),
    ("select", 1, MANY),
    ("setmetatable", 2, 2),
    ("string.byte", 1, 3),
    ("string.find", 2, 4),
    ("string.format", 1, MANY),
    ("string.gmatch", 2, 2),
    ("string.gsub", 3, 4),
    ("string.len", 1, 1),
    ("string.lower", 1, 1),
    ("string.match", 2, 3),
    ("string.rep", 2, 3),
    ("string.reverse", 1, 1),
    ("string.split", 1, 2),
    ("string.sub", 2, 3),
    ("string.upper", 1, 1),
    ("table.clear", 1, 1),
    ("table.clone", 1, 1),
    ("table.concat", 1, 4),
    ("table.create", 1, 2),
    ("table.find", 2, 3),
    ("table.freeze", 1, 1),
    ("table.insert", 2, 3),
    ("table.isfrozen", 1, 1),
    ("table.move", 4, 5),
    ("table.remove", 1, 2),
    ("table.sort", 1, 2),
    ("table.unpack", 1, 3),
    ("tonumber", 1, 2),
    ("tostring", 1, 1),
    ("type", 1, 1),
    ("typeof", 1, 1),
    ("unpack", 1, 3),
    ("xpcall", 2, MANY),
];

/// The fewest and the most arguments of a function of the libraries, `string.rep`; None: they are not known here.
pub(super) fn of(path: &str) -> Option<(usize, usize)> {
    let place = FUNCTIONS.binary_search_by_key(&path, |one| one.0).ok()?;
    let (_, least, most) = FUNCTIONS[place];
    Some((least, most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm;

    #[test]
    fn functions_are_sorted_and_are_names_of_the_sandbox() {
        assert!(FUNCTIONS.is_sorted_by_key(|one| one.0));
        let globals = vm::globals();
        for (name, least, most) in FUNCTIONS {
            assert!(globals.contains(name) && least <= most, "{name}");
        }
        assert_eq!(of("string.rep"), Some((2, 3)));
        assert_eq!(of("string.trim"), None);
    }
}
