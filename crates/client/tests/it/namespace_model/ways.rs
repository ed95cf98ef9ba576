//! Servers that gain or lose tags while processes use namespaces.

use super::*;

/// Servers that have tags are replaced by others, and back: processes go on, and old and new ones agree.
#[tokio::test]
async fn processes_follow_servers_that_gain_and_lose_tags() {
    for optimize in [true, false] {
        let fake = Fake::new();
        let options = options(&fake).optimize_with_default_counter_and_evidence(optimize);
        let process = async || Namespacer::new(fake.clone(), options.clone()).await.unwrap();
        let mut processes = vec![process().await, process().await];
        for (tags, all_gone) in [(true, true), (false, true), (true, true), (false, false), (true, false)] {
            fake.replace_servers(tags, |_| all_gone);
            processes.push(process().await);
            if !all_gone {
                // The record is where it was.
                fake.advance_ms(5_000);
            }
            for round in 0..6 {
                for names in &processes {
                    let key = names.key("userId", 1).await.unwrap();
                    set(&fake, &key, "content").await;
                    for other in &processes {
                        let same = other.key("userId", 1).await.unwrap();
                        // Another process learns of the change within a second.
                        let found = content(&fake, &same).await;
                        assert!(round == 0 || found.as_deref() == Some("content"), "{tags} {round}");
                    }
                    names.update("userId", 1).await.unwrap();
                    for other in &processes {
                        let key = other.key("userId", 1).await.unwrap();
                        assert_eq!(content(&fake, &key).await, None, "{tags} {round}");
                    }
                }
                fake.advance_ms(1_000);
            }
            assert!(processes.iter().all(|names| names.uses_tags() == (tags && all_gone)), "{tags}");
        }
    }
}

/// A process that has not noticed yet that the way has changed sees the updates of a process that has.
#[tokio::test]
async fn an_update_is_seen_by_processes_that_have_a_copy_of_the_record_before_the_change() {
    for starts_late in [false, true] {
        let fake = Fake::with_tags();
        let (slow, quick) = (process(&fake).await, process(&fake).await);
        fake.advance_ms(5_000);
        let key = slow.key("userId", 1).await.unwrap();
        set(&fake, &key, "content").await;
        fake.replace_servers(false, |_| false);
        let quick = if starts_late { process(&fake).await } else { quick };
        quick.update("userId", 1).await.unwrap();
        assert!(!quick.uses_tags() && slow.uses_tags());
        fake.advance_ms(900);
        let key = slow.key("userId", 1).await.unwrap();
        assert_eq!(content(&fake, &key).await, None);
        assert!(slow.uses_tags(), "it has a copy still");
        fake.advance_ms(100);
        fake.advance_ms(5_000);
        slow.key("userId", 1).await.unwrap();
        assert!(!slow.uses_tags());
    }
}
