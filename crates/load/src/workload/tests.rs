use super::*;

fn plan(popularity: Popularity) -> Plan {
    Plan {
        keys: 1000,
        key_bytes: 32,
        sizes: Sizes::fixed(100),
        ttls: Ttls::never(),
        flags: 0,
        get_share: 1.0,
        multiget: 1,
        popularity,
        drift: 0,
        one_hit_share: 0.0,
        fill_on_miss: false,
        seed: 1,
        run: *b"abcdef",
    }
}

fn draws(plan: Plan, number: usize) -> Vec<u64> {
    let mut mix = Mix::new(Arc::new(plan), 0);
    (0..number).map(|_| mix.draw()).collect()
}

fn counts(draws: &[u64]) -> Vec<f64> {
    let mut counts = vec![0.0; 1000];
    for id in draws {
        counts[*id as usize] += 1.0;
    }
    counts
}

/// Frequencies of the first ranks against 1 / (n^s * H), within five standard deviations.
#[test]
fn zipf_frequencies() {
    const DRAWS: u32 = 200_000;
    for exponent in [0.7, 1.0, 1.2] {
        let seen = counts(&draws(plan(Popularity::Zipf(exponent)), DRAWS as usize));
        let sum: f64 = (1..=1000).map(|n| f64::from(n).powf(-exponent)).sum();
        for rank in [1_u32, 2, 3, 10, 100] {
            let wanted = f64::from(DRAWS) * f64::from(rank).powf(-exponent) / sum;
            let off = (seen[rank as usize - 1] - wanted).abs();
            assert!(off < 5.0 * wanted.sqrt(), "exponent {exponent}, rank {rank}: off by {off} of {wanted}");
        }
    }
}

#[test]
fn uniform_frequencies() {
    for count in counts(&draws(plan(Popularity::Uniform), 200_000)) {
        assert!((count - 200.0).abs() < 6.0 * 200_f64.sqrt(), "{count}");
    }
}

#[test]
fn drift_moves_the_most_popular_key() {
    let mut drifting = plan(Popularity::Zipf(1.5));
    drifting.drift = 1000;
    let ids = draws(drifting, 100_000);
    for slice in [0, 50, 99] {
        let seen = counts(&ids[slice * 1000..(slice + 1) * 1000]);
        let most = (0..1000).max_by(|a, b| seen[*a].total_cmp(&seen[*b])).unwrap();
        assert_eq!(most, slice, "slice {slice}");
    }
}

#[test]
fn streams_differ_and_repeat() {
    let plan = Arc::new(plan(Popularity::Uniform));
    let first = |stream| Mix::new(Arc::clone(&plan), stream).draw();
    assert_eq!(first(3), first(3));
    assert!((1..20).any(|stream| first(stream) != first(0)));
}

#[test]
fn gets_and_sets_in_their_ratio() {
    let mut mixed = plan(Popularity::Uniform);
    mixed.get_share = 0.8;
    mixed.multiget = 4;
    let mut mix = Mix::new(Arc::new(mixed), 0);
    let mut gets = 0;
    for _ in 0..10_000 {
        let mut keys = Vec::new();
        match mix.next(&mut keys) {
            Some(Op::Get) => {
                gets += 1;
                assert_eq!(keys.len(), 4);
            }
            other => assert_eq!((other, keys.len()), (Some(Op::Set), 1)),
        }
    }
    assert!((7800..8200).contains(&gets), "{gets}");
}

#[test]
fn names_lead_back_to_keys() {
    let plan = plan(Popularity::Uniform);
    let name = |id| {
        let mut name = Vec::new();
        plan.write_key(id, &mut name);
        name
    };
    assert_eq!(name(907), b"abcdef00000000000000000000000907");
    for id in [0, 1, 10, 999] {
        assert_eq!(plan.id(&name(id)), Some(id));
    }
    for name in [&b"abcdef907"[..], b"abcdeg00000000000000000000000907", b"abcdef00000000000000000000001000"]
    {
        assert_eq!(plan.id(name), None);
    }
    assert!(Plan::new_run().iter().all(u8::is_ascii_lowercase));
}

#[test]
fn sizes_and_lifetimes() {
    let mut plan = plan(Popularity::Uniform);
    let sizes = |plan: &Plan| (0..1000).map(|id| plan.value_bytes(id)).collect::<Vec<_>>();
    assert!(sizes(&plan).iter().all(|bytes| *bytes == 100));
    plan.sizes = "50-60".parse().unwrap();
    assert!(sizes(&plan).iter().all(|bytes| (50..=60).contains(bytes)));
    assert!((50..=60).all(|bytes| sizes(&plan).contains(&bytes)));
    plan.sizes = "10:3,20:1".parse().unwrap();
    assert!((700..800).contains(&sizes(&plan).iter().filter(|bytes| **bytes == 10).count()));
    plan.sizes = "lognormal:200,1.0".parse().unwrap();
    assert_eq!(sizes(&plan), sizes(&plan));
    assert!((450..550).contains(&sizes(&plan).iter().filter(|bytes| **bytes < 200).count()));
    plan.ttls = "0:1,60:1".parse().unwrap();
    assert!((450..550).contains(&(0..1000).filter(|id| plan.ttl_seconds(*id) == 60).count()));
}

#[test]
fn what_cannot_be_read() {
    for text in
        ["", "x", "1-", "9-1", "1:x", "1:0", "lognormal:1", "lognormal:0,1", "lognormal:9,9", "99999999"]
    {
        assert!(text.parse::<Sizes>().is_err(), "{text}");
    }
    for text in ["", "-1", "2592001", "5:0"] {
        assert!(text.parse::<Ttls>().is_err(), "{text}");
    }
    for text in ["", "zipf", "zipf:", "zipf:-1", "zipf:11", "normal"] {
        assert!(text.parse::<Popularity>().is_err(), "{text}");
    }
}

#[test]
fn traces_of_arc() {
    let (trace, keys) = Replay::parse("100 2 0 0\n7 1 0 1\n101 1 0 2\n").unwrap();
    assert_eq!((&*trace, keys), (&[0, 1, 2, 1][..], 3));
    let mut replay = Replay::new(trace);
    let mut other = replay.clone();
    let mut ids = Vec::new();
    assert_eq!(replay.next(&mut ids), Some(Op::Get));
    while other.next(&mut ids).is_some() {}
    assert_eq!(ids, [0, 1, 2, 1]);
    assert_eq!(replay.next(&mut ids), None);
    assert!(Replay::parse("1\n").is_err());
    assert!(Replay::parse("").is_err());
}

#[test]
fn keys_asked_for_once() {
    let plan = Arc::new(Plan { one_hit_share: 0.25, ..plan(Popularity::Uniform) });
    let mut seen = std::collections::HashSet::new();
    let mut once = 0;
    for stream in 0..2 {
        let mut mix = Mix::new(Arc::clone(&plan), stream);
        for _ in 0..20_000 {
            let mut keys = Vec::new();
            assert_eq!(mix.next(&mut keys), Some(Op::Get));
            if keys[0] >= plan.keys {
                assert!(seen.insert(keys[0]), "{} twice", keys[0]);
                once += 1;
                let mut name = Vec::new();
                plan.write_key(keys[0], &mut name);
                assert_eq!(plan.id(&name), Some(keys[0]));
            }
        }
    }
    // Five standard deviations.
    assert!((9_566..=10_434).contains(&once), "{once}");
}
