//! What users with rights may ask: a decision about a parsed request, without a connection.

use cattlegrid_engine::rules::Rules;
use cattlegrid_engine::{Right, RightSet, Rights};
use cattlegrid_protocol::{BINARY_MAGIC, Limits, Parsed, RefusalCause, opcode, parse, parse_packet};
use cattlegrid_tags::Prefixes;

use crate::objects::settings;
use crate::sim::rng::Rng;
use crate::world::World;

const SPACES: [&str; 2] = ["ns:", "ns:deep:"];

fn world() -> World {
    let world = World::behind(&SPACES, Rules::new(Vec::new(), Vec::new()));
    let prefixes = Prefixes::new(&SPACES).expect("they are valid");
    world.engine.set_objects(Some(settings(|own| own.prefixes = prefixes)));
    world
}

fn rights(names: &[Right], prefix: &str) -> Rights {
    let set = names.iter().fold(RightSet::NONE, |set, right| set.with(*right));
    Rights { set, prefix: prefix.as_bytes().into() }
}

/// Whether the first command of these bytes is allowed; None: it is none.
fn allows(world: &World, rights: &Rights, input: &[u8]) -> Option<bool> {
    let limits = Limits { extensions: true, ..Limits::default() };
    let parsed = if input[0] == BINARY_MAGIC { parse_packet(input, &limits) } else { parse(input, &limits) };
    let allowed = world.engine.allows_parsed(rights, &parsed);
    match &parsed {
        Parsed::Refused(refused) if refused.store.is_none() && refused.invalidate.is_none() => None,
        Parsed::Incomplete { block: None, .. } => None,
        _ => Some(allowed),
    }
}

#[test]
fn a_store_is_refused_before_its_block_has_come() {
    let world = world();
    let reader = rights(&[Right::Read], "");
    for (line, reply) in [
        ("set k 0 0 100\r\nabc", "CLIENT_ERROR not allowed"),
        ("set k 0 0 100 noreply\r\nabc", ""),
        ("ms k 100 q\r\nabc", "CLIENT_ERROR not allowed"),
        // The old value would go.
        ("set k 0 0 100000000\r\nabc", "CLIENT_ERROR not allowed"),
        ("ms aw== 100000000 b\r\nabc", "CLIENT_ERROR not allowed"),
    ] {
        let parsed = parse(line.as_bytes(), &Limits::default());
        assert!(!world.engine.allows_parsed(&reader, &parsed), "{line}");
        let Parsed::Refused(refused) = parsed.not_allowed() else { panic!("{line}") };
        let bytes = if line.contains("100000000") { 100_000_000 } else { 100 };
        assert_eq!(
            (refused.reply, refused.used as u64 + refused.swallow),
            (reply, bytes + line.len() as u64 - 3 + 2)
        );
        assert!(refused.invalidate.is_none() && refused.store.is_none() && !refused.close);
        assert!(matches!(refused.cause, RefusalCause::NotAllowed("set" | "ms")));
    }
}

#[test]
fn quiet_packets_are_told_except_gets() {
    let world = world();
    let nobody = rights(&[], "");
    for code in 0..0x25 {
        let mut packet = vec![0; 24];
        (packet[0], packet[1], packet[3]) = (BINARY_MAGIC, code, 1);
        let extras = match code {
            opcode::SET..=opcode::REPLACE | opcode::SETQ..=opcode::REPLACEQ => 8,
            opcode::INCREMENT | opcode::DECREMENT | opcode::INCREMENTQ | opcode::DECREMENTQ => 20,
            opcode::TOUCH..=opcode::GATQ | opcode::GATK | opcode::GATKQ => 4,
            _ => 0,
        };
        (packet[4], packet[11]) = (extras, extras + 1);
        packet.extend(std::iter::repeat_n(0, usize::from(extras)));
        packet.push(b'k');
        let parsed = parse_packet(&packet, &Limits::default());
        if !matches!(parsed, Parsed::Complete { .. }) || world.engine.allows_parsed(&nobody, &parsed) {
            continue;
        }
        let Parsed::Refused(refused) = parsed.not_allowed() else { panic!("{code:#x}") };
        let is_quiet_get = matches!(code, opcode::GETQ | opcode::GETKQ | opcode::GATQ | opcode::GATKQ);
        assert_eq!(
            (refused.packet.is_none(), refused.reply, refused.used),
            (is_quiet_get, "", packet.len()),
            "{code:#x}"
        );
    }
}

/// `zz` is in keys only: each that a user with the prefix `shop:` may name has it right behind the prefix.
#[test]
fn no_key_outside_of_the_prefix_is_named() {
    const KEYS: [&str; 9] =
        ["shop:zz", "shop:zz", "shop:zz", "zz", "shozz", "ns:zz", "xshop:zz", "shop;zz", "Shop:zz"];
    const NAMES: [&str; 6] = ["shop%3Azz", "shop%3azz", "shop%3Azz", "zz", "shop:zz", "%73hop%3Azz"];
    const LINES: [&str; 28] = [
        "get K",
        "get K K",
        "gets K K K",
        "gat 5 K",
        "set K 0 0 1\r\nx",
        "set K 0 0 1 noreply\r\nx",
        "add K 0 0 1\r\nx",
        "cas K 0 0 1 5\r\nx",
        "incr K 1",
        "touch K 1",
        "delete K",
        "mg K v",
        "mg K v N30 T5",
        "ms K 1\r\nx",
        "ms K 1 T5 I\r\nx",
        "md K q",
        "ma K v",
        "me K",
        "set @tags:K 0 0 1\r\nx",
        "get set:exist:N:a",
        "get set:union:N:N",
        "mg set::N v Aunion:N",
        "delete set::N",
        "mg counter:get:N v",
        "get @why:K",
        "get K @tag:t",
        "md K G",
        "set K 0 0 90000000\r\nx",
    ];
    let world = world();
    let everything = rights(&Right::ALL, "shop:");
    let (mut rng, mut seen) = (Rng(3), [0; 2]);
    for _ in 0..200_000 {
        let mut line = String::new();
        for c in rng.of(&LINES).chars() {
            match c {
                'K' => line.push_str(rng.of(&KEYS)),
                'N' => line.push_str(rng.of(&NAMES)),
                c => line.push(c),
            }
        }
        line.push_str("\r\n");
        let Some(allowed) = allows(&world, &everything, line.as_bytes()) else { continue };
        seen[usize::from(allowed)] += 1;
        if !allowed {
            continue;
        }
        // What follows the first line is data, or the next command.
        let words = line.split("\r\n").next().unwrap_or_default().split(' ');
        // A method that there is not is an error, which reads nothing.
        let is_call = |word: &str| !word.starts_with('A') || word.starts_with("Aunion:");
        for word in words.filter(|word| word.contains("zz") && is_call(word)) {
            let plain = |key: &str| key.to_ascii_lowercase().replace("%73", "s").replace("%3a", ":");
            let own = word.split_once("::").map_or(word.to_owned(), |(_, key)| plain(key));
            let is_own = ["shop:", "@tags:shop:"].iter().any(|begin| word.starts_with(begin))
                || own.starts_with("shop:");
            let mut parts = word.split(':').filter(|part| part.contains("zz"));
            let is_named =
                parts.all(|part| part.to_ascii_lowercase().replace("%73", "s").starts_with("shop%3a"));
            assert!(is_own || is_named, "{line:?}");
        }
    }
    assert!(seen[0] > 10_000 && seen[1] > 10_000, "{seen:?}");
}

#[test]
fn control_keys_of_a_namespace() {
    let world = world();
    let spaced = rights(&[Right::Control, Right::Read], "ns:");
    let deep = rights(&Right::ALL, "ns:deep:");
    for (line, of_spaced, of_deep) in [
        ("get ns:@tag:t", true, false),
        ("get ns:deep:@bump:t", true, true),
        ("get ns:@why:k", true, false),
        ("get ns:@nodes", false, false),
        ("get ns:deep:@flush:5", false, false),
        ("md ns:t G", true, false),
        ("md ns:deep:t G I", true, true),
        ("get @tag:t", false, false),
        ("set ns:@tags:k 0 0 1\r\nx", false, false),
        ("set ns:@tags:deep:k 0 0 1\r\nx", false, true),
        ("set ns:deep:@tags:k 0 0 1\r\nx", false, true),
        ("set @tags:ns:deep:k 0 0 1\r\nx", false, true),
        ("get ns:deep:set:getall:k", true, true),
        ("get ns:set:getall:deep%3Ak", true, true),
        ("get ns:set:getall:k", true, false),
    ] {
        let of = |rights| allows(&world, rights, format!("{line}\r\n").as_bytes());
        assert_eq!((of(&spaced), of(&deep)), (Some(of_spaced), Some(of_deep)), "{line}");
    }
}
