//! Prime factors of a number. Rule: `factors:{n:int}`

use cattlegrid_worker::JobError;
use cattlegrid_worker::loader::{self, Job, Value, not_found};

fn main() {
    if let Some(worker) = cattlegrid_worker::maybe_worker() {
        loader::serve(worker, load);
    }
    eprintln!("a Cattlegrid server starts this program: [loader.NAME] command = [\"factors\"]");
    std::process::exit(2);
}

fn load(job: &mut Job<'_>) -> Result<Value, JobError> {
    let mut rest: u64 = job.arg("n")?.parse()?;
    if rest == 0 {
        return Ok(not_found().ttl(5));
    }
    let mut factors = Vec::new();
    let mut next = 2;
    while next <= rest / next {
        if rest.is_multiple_of(next) {
            rest /= next;
            factors.push(next.to_string());
        } else {
            next += 1;
            if next.is_multiple_of(1 << 22) && job.cancelled() {
                return Err(JobError::new("cancelled", "no longer needed"));
            }
        }
    }
    factors.push(rest.to_string());
    Ok(Value::new(factors.join(" ")).ttl(3600))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_of_a_number() {
        for (n, factors) in
            [("1", "1"), ("2", "2"), ("60", "2 2 3 5"), ("9991", "97 103"), ("65537", "65537")]
        {
            assert_eq!(load(&mut Job::test("factors", &[("n", n)])).unwrap(), Value::new(factors).ttl(3600));
        }
        assert_eq!(load(&mut Job::test("factors:0", &[("n", "0")])).unwrap(), not_found().ttl(5));
        assert!(
            load(&mut Job::test("factors:18446744073709551616", &[("n", "18446744073709551616")])).is_err()
        );
    }
}
