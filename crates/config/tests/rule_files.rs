//! Rule files drawn from seeds: what the fuzz target `rules` does, for a second.

#[path = "../../../fuzz/draw.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod draw;
mod grammar;

#[test]
fn rule_files_are_refused_with_reasons_or_mean_what_check_prints() {
    let accepted = (0..400).filter(|seed| {
        let len = [40, 100, 400][*seed as usize % 3];
        grammar::check(&draw::seeded(*seed, len))
    });
    let accepted = accepted.count();
    assert!(accepted > 50, "{accepted} were accepted: too few to test what is");
}
