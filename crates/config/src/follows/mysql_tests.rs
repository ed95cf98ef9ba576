use std::path::Path;

use cattlegrid_follow::postgres::Cascade;

use crate::check::explain;
use crate::follow::FollowOrigin;
use crate::rule_file::RuleFile;

const SHOP: &str = "[follow.shop]\nurl = \"mysql://cattle:secret@db.internal/shop\"\n";
const USERS: &str = "[[follow.shop.table]]\ntable = \"users\"\nbump = [\"user:{id}\"]\n";

fn parse(text: &str) -> Result<RuleFile, String> {
    RuleFile::parse(Path::new("f.toml"), text).map_err(|error| error.to_string())
}

#[test]
fn what_is_shown_is_a_file_again_without_the_password() {
    let more = "kind = \"mariadb\"\nserver_id = 4711\nsslmode = \"require\"\n";
    let file = parse(&format!("{SHOP}{more}{USERS}cascade = \"flush\"\n")).unwrap();
    let log = file.follows[0].mysql().unwrap();
    assert_eq!((log.address.port, log.server_id), (3306, Some(4711)));
    let table = &log.tables[0].table;
    assert_eq!((table.full_name().as_str(), table.cascade), ("shop.users", Cascade::Flush));
    let shown = explain(&file, None).unwrap();
    assert!(!shown.contains("secret"), "{shown}");
    let mut again = parse(&shown).unwrap().follows;
    let FollowOrigin::Mysql(log) = &mut again[0].origin else { panic!("a server") };
    log.address.password = Some("secret".to_owned());
    assert_eq!(again, file.follows);
}

#[test]
fn one_node_follows_for_all() {
    let fleet = "[follow.bumps]\nservers = [\"http://a:2379\"]\nprefix = \"/shop\"\n";
    let file = parse(&format!("{fleet}{SHOP}via = \"bumps\"\n{USERS}")).unwrap();
    let shop = file.follows.iter().find(|own| own.name == "shop").unwrap();
    let bumps = file.follows.iter().find(|own| own.name == "bumps").unwrap();
    assert_eq!(shop.via().and_then(|via| via.log.as_deref()), Some(bumps));
    let other = parse(&format!("{fleet}{SHOP}via = \"bumps\"\n{USERS}cascade = \"flush\"\n")).unwrap();
    let mark = |file: &RuleFile| file.follows.iter().find(|own| own.name == "shop").unwrap().mark();
    assert_ne!(mark(&file), mark(&other), "it is followed in another way");
    let error = parse(&format!("{fleet}{SHOP}via = \"bumps\"\nagain = \"5s\"\n{USERS}")).unwrap_err();
    assert!(error.contains("again: with via it is that of the log of etcd"), "{error}");
}

#[test]
fn each_mistake_has_its_line_and_what_would_be_right() {
    let shop = |key: &str| format!("{SHOP}{key}\n{USERS}");
    for (text, line, part) in [
        (shop("slot = \"a\""), 3, "that of MySQL or MariaDB, which has none"),
        (shop("via = \"bumps\""), 1, "is no log of etcd of this file"),
        (shop("server_id = 0"), 3, "server_id"),
        (shop("kind = \"postgres\""), 2, "does not begin with postgres://"),
        (SHOP.replace("/shop", "") + USERS, 2, "names no database"),
        (format!("{SHOP}{USERS}cascade = \"ignore\"\n"), 6, "cascade"),
        (
            shop("server_id = 7") + &shop("server_id = 7").replace("follow.shop", "follow.other"),
            7,
            "is that of follow shop",
        ),
    ] {
        let error = parse(&text).unwrap_err();
        let found =
            error.lines().any(|own| own.starts_with(&format!("f.toml:{line}: ")) && own.contains(part));
        assert!(found, "{text}: {error}");
    }
}
