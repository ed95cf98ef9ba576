//! `math.random` and `math.randomseed`: seeded for each call by [`cattlegrid_objects::ScriptCall::random`].

use mlua::{Lua, Table, Value};

use super::arguments::{fault, is_whole, number};
use super::call;

pub(super) fn install(lua: &Lua, math: &Table) -> mlua::Result<()> {
    math.raw_set("random", lua.create_function(random)?)?;
    math.raw_set(
        "randomseed",
        lua.create_function(|lua, seed: Value| {
            let seed = number(lua, &seed, "math.randomseed", 1)?;
            call(lua, "math.randomseed", |current| {
                current.written.random = Some(seed.to_bits());
                Ok(())
            })
        })?,
    )
}

/// `()`: a number from 0 up to 1; `(n)`: a whole number from 1 to n; `(m, n)`: a whole number from m to n.
fn random(lua: &Lua, (first, second): (Value, Value)) -> mlua::Result<f64> {
    let name = "math.random";
    let bits = call(lua, name, |current| {
        let state = current.written.random.get_or_insert(current.call.random);
        Ok(next(state))
    })?;
    // A number has 53 bits.
    let share = (bits >> 11) as f64 / (1_u64 << 53) as f64;
    let (least, most) = match (&first, &second) {
        (Value::Nil, _) => return Ok(share),
        (most, Value::Nil) => (1.0, number(lua, most, name, 1)?),
        (least, most) => (number(lua, least, name, 1)?, number(lua, most, name, 2)?),
    };
    if !is_whole(least) || !is_whole(most) {
        return Err(fault(lua, "math.random: the bounds must be whole numbers up to 2^53"));
    }
    if least > most {
        return Err(fault(lua, "math.random: interval is empty"));
    }
    // The number of values may have up to 55 bits.
    let count = (most as i64 - least as i64) as u64 + 1;
    let offset = (u128::from(bits) * u128::from(count)) >> 64;
    Ok((least as i64 + offset as i64) as f64)
}

/// The next number of `SplitMix64`. Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number
/// Generators".
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut bits = *state;
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use crate::testing::{TestSetting, eval, vm};

    #[test]
    fn a_call_is_seeded() {
        let lua = vm();
        let draw =
            |random: u64, source: &str| eval(&lua, &TestSetting { random, ..TestSetting::default() }, source);
        let three = "return math.random(100), math.random(), math.random(5, 6)";
        assert_eq!(draw(1, three), draw(1, three));
        assert_ne!(draw(1, three), draw(2, three));
        let seeded = "math.randomseed(42); return math.random(1e9)";
        assert_eq!(draw(1, seeded), draw(2, seeded));
    }

    #[test]
    fn numbers_are_within_their_bounds() {
        let lua = vm();
        let source = "local seen = {}
            for i = 1, 2000 do
                local n = math.random(-1, 1); seen[n] = true
                local share = math.random()
                assert(share >= 0 and share < 1 and math.random(6) <= 6 and math.random(6) >= 1)
                local wide = math.random(-2^53, 2^53)
                assert(wide >= -2^53 and wide <= 2^53)
            end
            return seen[-1], seen[0], seen[1], math.random(3, 3)";
        assert_eq!(eval(&lua, &TestSetting::default(), source), "true true true 3");
        for (source, text) in [
            ("math.random(0)", "test.luau:1: math.random: interval is empty"),
            ("math.random(2, 1)", "test.luau:1: math.random: interval is empty"),
            ("math.random(1.5)", "test.luau:1: math.random: the bounds must be whole numbers up to 2^53"),
            (
                "math.random(1, 1e300)",
                "test.luau:1: math.random: the bounds must be whole numbers up to 2^53",
            ),
            ("math.random('x')", "test.luau:1: math.random: argument 1 must be a number, and is a string"),
        ] {
            assert_eq!(eval(&lua, &TestSetting::default(), source), text, "{source}");
        }
    }
}
