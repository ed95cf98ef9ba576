//! Sources that are refused, again and again, use up nothing. A process of its own: names of types are those of a process.

use std::sync::Arc;

use crate::harness::source;
use cattlegrid_objects::{Host as _, Registry, Settings, TYPES_MAX, TypeSettings};
use cattlegrid_scripts::{Limits, Scripts, Sources, run_tests};

const TYPE: &str = "return {new = function() return {} end, m = function() return 1 end}";

fn load(names: &[String], test: Option<&str>) -> Result<Arc<Scripts>, String> {
    let sources = Sources {
        types: names.iter().map(|name| source(name, TYPE)).collect(),
        tests: test.iter().map(|text| source("t", text)).collect(),
        ..Sources::default()
    };
    let failed = |problems: Vec<_>| format!("{problems:?}");
    let (scripts, _) = Scripts::load(&sources, &Limits::default()).map_err(failed)?;
    run_tests(&scripts, &sources, &Settings::default()).map_err(failed)?;
    Ok(scripts)
}

fn registry(scripts: &Arc<Scripts>) -> Registry {
    let types = scripts.types().iter();
    let types = types.map(|own| TypeSettings::new(own.object_type.name)).collect();
    Registry::with_host(Settings { types, ..Settings::default() }, Some(scripts.clone()))
        .expect("the types are those of the host")
}

#[test]
fn refused_sources_leave_nothing_that_counts() {
    let kept: Vec<String> = (0..10).map(|place| format!("kept{place}")).collect();
    let in_force = load(&kept, None).unwrap();
    registry(&in_force).put_in_force();
    let ids =
        |scripts: &Scripts| -> Vec<u16> { scripts.types().iter().map(|own| own.object_type.id).collect() };
    let numbers = ids(&in_force);
    for attempt in 0..4 * TYPES_MAX {
        let names = [kept[0].clone(), format!("new{attempt}"), format!("other{attempt}")];
        let refused = load(&names, Some("error('no')")).unwrap_err();
        assert!(refused.contains("no"), "{refused}");
    }
    drop(in_force);
    let more: Vec<String> = (10..TYPES_MAX).map(|place| format!("more{place}")).collect();
    let all = load(&[kept.clone(), more].concat(), None).unwrap();
    assert_eq!(ids(&all)[..10], numbers, "objects of types that were in force are found again");
    registry(&all).put_in_force();
    drop(all);
    let refused = load(&["one_more".to_owned()], None).unwrap_err();
    assert!(refused.contains("has had 100 names of types"), "{refused}");
    assert_eq!(ids(&load(&kept, None).unwrap()), numbers);
}
