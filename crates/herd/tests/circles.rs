//! All orders in which connections that close a circle begin to wait, publish that and look, and give up: one of them
//! always does, and then nobody waits for ever.

use cattlegrid_herd::{WaitGraph, Walk};

/// Runs one order of three steps of each connection: to wait, to publish and look, to act on what was seen. Connection
/// `n` holds key `n` and waits for the next one's. `passes`: the last key was another's, and passes on to its holder only
/// with the fourth step of the last connection, which publishes and looks again when it hears of it.
fn is_cut(order: &[usize], count: usize, passes: bool) -> bool {
    let graph = WaitGraph::default();
    let last = count - 1;
    let (mut steps, mut waits) = (vec![0; count], vec![false; count]);
    let mut seen: Vec<Option<Walk>> = vec![None; count];
    let mut holds: Vec<bool> = (0..count).map(|n| n != last || !passes).collect();
    let key = |n: usize| 100 + (n % count) as u64;
    let publish = |n: usize, holds: &[bool]| {
        let held = holds[n].then(|| key(n)).into_iter().collect::<Vec<_>>();
        if held.is_empty() { Walk::Clear } else { graph.publish(n as u64, vec![key(n + 1)], held) }
    };
    for n in order.iter().copied() {
        match steps[n] {
            0 => waits[n] = true,
            1 => seen[n] = Some(publish(n, &holds)),
            2 | 4 => match seen[n].take() {
                // Verified against who holds what now.
                Some(Walk::Circle(circle))
                    if circle.iter().all(|step| {
                        holds[step.holder as usize] && step.hash == key(step.holder as usize)
                    }) =>
                {
                    waits[n] = false;
                    graph.withdraw(n as u64);
                }
                Some(Walk::TooLong) => waits[n] = false,
                _ => {}
            },
            _ => {
                holds[n] = true;
                if waits[n] {
                    seen[n] = Some(publish(n, &holds));
                }
            }
        }
        steps[n] += 1;
    }
    waits.contains(&false)
}

fn each_order(left: &mut [usize], order: &mut Vec<usize>, each: &mut impl FnMut(&[usize])) {
    if left.iter().all(|steps| *steps == 0) {
        return each(order);
    }
    for who in 0..left.len() {
        if left[who] > 0 {
            left[who] -= 1;
            order.push(who);
            each_order(left, order, each);
            order.pop();
            left[who] += 1;
        }
    }
}

#[test]
fn every_circle_is_cut() {
    for (count, passes, expected) in
        [(2, false, 20), (3, false, 1680), (4, false, 369_600), (2, true, 56), (3, true, 9240)]
    {
        let mut left = vec![3; count];
        left[count - 1] += 2 * usize::from(passes);
        let (mut orders, mut uncut) = (0, 0);
        each_order(&mut left, &mut Vec::new(), &mut |order| {
            orders += 1;
            uncut += u64::from(!is_cut(order, count, passes));
        });
        assert_eq!((orders, uncut), (expected, 0), "{count} connections, passes: {passes}");
    }
}
