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
fn each_mistake_has_its_line_and_what_would_be_right() {
    let shop = |key: &str| format!("{SHOP}{key}\n{USERS}");
    for (text, line, part) in [
        (shop("slot = \"a\""), 3, "that of MySQL or MariaDB, which has none"),
        (shop("via = \"bumps\""), 3, "that of MySQL or MariaDB, which has none"),
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
