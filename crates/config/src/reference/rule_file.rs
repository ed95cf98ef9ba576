//! The part of `docs/configuration.md` about the rule file, generated from the table of its keys.

use std::fmt::Write as _;

use crate::follow_keys::{FOLLOW, FOLLOW_TABLE};
use crate::keys::{self, TableKey};
use crate::object_keys::{OBJECT_TYPE, OBJECTS};
use crate::users::USER;
use crate::value::ValueSyntax;

/// The section about prefixes.
const PREFIXES: &str = "\
## Prefixes\n\n\
Many frameworks and clients put a text before every key: Django `:1:` (its `KEY_PREFIX` and `VERSION`), Rails and Dalli \
a `namespace`, php-memcached `OPT_PREFIX_KEY`. `prefixes` in `[server]` names them, and then a key is matched, tagged, \
called and controlled as what follows its prefix. The longest one with which a key begins counts.\n\n\
```toml\n\
[server]\n\
prefixes = [\":1:\", \"shop:production:\"]\n\n\
[[rule]]\n\
match = \"page:{id}\"                # :1:page:7, shop:production:page:7, and page:7\n\
hold = \"400ms\"\n\
tags = [\"pages\"]\n\n\
[[rule]]\n\
match = \"session:{id}\"\n\
prefix = \":1:\"                    # only :1:session:7\n\
grace = \"30s\"\n\
```\n\n\
Each prefix is a namespace of its own. `delete :1:@tag:pages`, which is what Django's `cache.delete(\"@tag:pages\")` sends, \
invalidates pages behind `:1:` only; tags that a client or a loader names for a key are behind the key's prefix; \
`:1:quota:take:alice` is another quota than `quota:take:alice`, and what a method of your own reads, stores and \
invalidates is behind the prefix of its client. `@flush` is refused behind a prefix (`CLIENT_ERROR no flush of a prefix`), since \
a flush is for all: give the rules of the prefix a tag in common. A cascade on `flush` invalidates its tags behind every \
prefix. Clients without a prefix are not affected.\n\n\
A prefix that is missing here is found: of misses without a rule a sample is tried behind each `:`, `.`, `/`, `|` and `_`, and \
the log, `stats rules` (`hint_1`) and `get @why:KEY` (`hint`) say what to add. A change of `prefixes` needs a restart.\n\n";

/// The section about shares.
const SHARES: &str = "\n## `[[share]]`\n\n\
Memory by prefix: so that one application cannot evict what another has cached.\n\n\
```toml\n\
[[share]]\n\
prefix = \"shop:\"\n\
at_least = \"20%\"\n\
at_most = \"60%\"\n\
```\n\n\
A share is what is stored under keys that begin with its prefix. While it has no more than its `at_least`, nothing of it is evicted, whatever \
others write. It has no more than its `at_most`, even where memory is free: a write beyond that evicts others of the share. \
Each shard keeps to its part and the value just written, so large values may exceed it by one value a shard (1, 2, 8 or 32 shards with 1, 2, 4 or 8 \
threads, each of 8 MiB at least). A value that alone is larger than `at_most` is not kept. In between, and for keys without a share, all compete, \
and what is least used goes first.\n\n\
Percentages are of the memory limit (`-m`, less what rules and tags take of it). What counts are the bytes of \
the items with header and key, not the index; items that are dead count until they are removed. A key counts for the longest prefix \
only, so that `shop:cart:` is not a part of `shop:`. An object counts by its own key, behind the prefix of `[server] prefixes` if its \
client puts one before: `quota:take:shop%3Aalice:1:10:minute` for `shop:`. Pinned objects count, and are never evicted, also not for `at_most`.\n\n\
What all have at least can be more than there is room for: beside pinned objects, where items are tiny (with a key of 20 bytes and a value of 10 the \
index takes a fifth of the memory), or where one value takes much of the memory. Then each keeps the same part of its \
`at_least`, and a tenth of the room is left to all other items: `kept` in `stats shares`, and the log says it once.\n\n\
A read does not look at shares, so they cost a hit nothing; each has some open segments of its own in each shard, which below `-m 64` \
is felt with several shares. `stats shares` shows what each has. SIGHUP changes the percentages; another prefix needs a restart. A file has at most 8 \
shares; under `-M` they are an error.\n\n";

/// The text from its heading on.
pub(crate) fn reference_markdown() -> String {
    let mut text = String::from(
        "\n# Rule file\n\n\
         `--config FILE` names a file in TOML that says which keys are protected, on what terms, and which tags \
         they carry. `cattlegrid check FILE` says whether it is right and shows it with all defaults; \
         `cattlegrid check FILE --key KEY` says what applies to a key, and `cattlegrid check FILE --try KEY` runs the \
         key's loader once. [example.toml](example.toml) is one to begin with.\n\n\
         Without a rule file the server behaves as memcached does, and so do keys without a rule. The first rule \
         whose pattern matches a key counts. Rules are for keys that can be computed again: what is stored under \
         one may be dropped, as if it had been evicted at once.\n\n\
         A file with a mistake is not taken: the server does not start, with status 2 and a line for each \
         mistake. SIGHUP reads the file again; if it has a mistake the old rules stay, and the log says what is \
         wrong. A new `[server]` needs a restart, and the log says so. A file that has neither rules nor cascades by then is \
         taken, with a warning in the log: no key has a rule any more. A file has at most 1,000 rules, 1,000 cascades, \
         8 shares, 64 loaders and 1 MiB.\n\n\
         ## Patterns\n\n\
         A pattern is text and captures, and matches whole keys. There are no other wildcards.\n\n\
         | | matches |\n|---|---|\n\
         | `{name}` | one or more bytes, none of them `:`, up to where the text behind it first occurs, or to the \
         end |\n\
         | `{name:int}` | the same, digits only |\n\
         | `{name*}` | the rest of the key, one or more bytes, with `:`; stands last |\n\
         | `{{`, `}}` | a brace |\n\n\
         Two captures never touch, and a pattern has at most 8. `{a}-{n:int}` does not match `x-y-1`, since `a` \
         ends at the first dash.\n\n\
         Keys that clients use as locks have no rule and set off no cascade, whatever a pattern matches: \
         `_lock*`, `lock:*`, `*:lock` and `*_lock`. Only a pattern that itself begins with `_lock` or `lock:`, or \
         ends with `:lock` or `_lock`, applies to them.\n\n\
         Tags have the same captures by their names, `user:{user}`. A tag that a long key makes longer than 200 \
         bytes is kept whole; a cascade can invalidate it, a command cannot name it.\n\n",
    );
    text.push_str(PREFIXES);
    text.push_str(
        "Times are texts with `ms`, `s`, `m`, `h` or `d`; sizes are bytes, or texts with `KiB`, `MiB`, `GiB` or \
         `k`, `m`, `g`.\n\n\
         ## `[[rule]]`\n\n\
         A rule protects its keys as soon as it names one of `hold`, `lease`, `grace`, `grace_on_error`, `early`, \
         `loader`: one client, or the loader, computes a missing value. The other keys of a lease need one of these beside them. Every rule keeps \
         values from being stored that were computed before their key was deleted.\n\n",
    );
    section(&mut text, keys::RULE);
    text.push_str(
        "\n## `[[cascade]]`\n\n\
         Invalidates tags when something happens to a key. Every cascade that matches applies; none sets off \
         another. [Tags](tags.md#invalidating) says which replies set one off. On `set`, a cascade that invalidates a tag of \
         the item that was set is an error, where the patterns prove it.\n\n",
    );
    section(&mut text, keys::CASCADE);
    text.push_str(SHARES);
    section(&mut text, keys::SHARE);
    text.push_str(
        "\n## `[[user]]`\n\n\
         What a user of the file of users may do, see [Security](security.md#users-with-rights). Without any such table a user who \
         has logged in may do everything; with them a user without a table too, unless the table of `\"*\"` says otherwise: a line of the log names these \
         users. Passwords are in the file of users only. A table for a user that is not in the file, or without such a file, is a mistake. SIGHUP \
         reads rights and users again, for the connections that are open as well: a user that is no longer in the file has no rights \
         there.\n\n",
    );
    section(&mut text, USER);
    text.push_str(
        "\n## `[loader.NAME]`\n\n\
         A program that computes the missing values of the rules that name it, in worker processes of the server's own. \
         NAME has up to 64 letters, digits, `_` and `-`. A value comes once for each key, whatever client asks: the first get \
         starts a job, and all wait for it as long as their `hold` allows. [The pool](pool.md#options) says more about \
         what most keys mean for the processes.\n\n\
         A directory, a program or a user that does not exist is a mistake of the file, at the start, for SIGHUP and \
         for `check` alike. SIGHUP starts every loader anew, since its program may have changed; if one is not ready within its \
         `start_timeout`, nothing changes and the log says why. A loader that no rule names is no mistake: the log \
         and `check` say so.\n\n",
    );
    section(&mut text, keys::LOADER);
    text.push_str(
        "\n## `[follow.NAME]`\n\n\
         The log of a database, whose changed rows invalidate tags, or of etcd, in which the nodes of a fleet find each other's \
         invalidations: see [Following logs](follow.md). NAME has up to 64 \
         letters, digits, `_` and `-`; a file has at most 8 logs of 200 tables. A log that cannot be reached is no mistake of \
         the file: the log is behind, and `cattlegrid check FILE --connect` says what is missing there.\n\n",
    );
    section(&mut text, FOLLOW);
    text.push_str("\n## `[[follow.NAME.table]]`\n\nA table whose rows are followed.\n\n");
    section(&mut text, FOLLOW_TABLE);
    text.push_str(
        "\n## `[objects]`\n\n\
         This table, or `--objects`, switches [objects](objects.md) on: values with methods, which clients call by the names \
         of keys. A rule may match objects by their names, `TYPE::KEY`; of such a rule only `tags` applies. SIGHUP reads all \
         of it again, with the types of your own in `dir`. `cattlegrid objects list` shows the types and their methods.\n\n\
         A directory with a mistake in any source, or with a test that fails, is a mistake of the file. With `--objects` that \
         directory takes the place of `dir`. Types of your own are in servers built with the cargo feature `scripts`, which is on by default; \
         without it a directory that has any, `time_limit`, `memory_limit`, `state_max` and `watch` are mistakes.\n\n",
    );
    section(&mut text, OBJECTS);
    text.push_str("\n## `[objects.TYPE]`\n\nHow one type behaves, such as `[objects.quota]`. What it says goes before what the source of a type of your own says.\n\n");
    section(&mut text, OBJECT_TYPE);
    text.push_str(
        "\n## `[server]`\n\n\
         Every option above by its long name, with `_` for `-`: `memory_limit = \"1GiB\"`, `threads = 4`, \
         `disable_cas = true`, `listen = [\"127.0.0.1:11211\"]`, `extended = [\"idle_timeout=60\"]`. An option of \
         the command line wins. `config`, `help`, `version` and `license` are for the command line only. And:\n\n",
    );
    section(&mut text, keys::SERVER);
    text
}

fn section<D, S>(text: &mut String, keys: &[TableKey<D, S>]) {
    text.push_str("| key | value | default | meaning |\n|---|---|---|---|\n");
    for key in keys::usable(keys) {
        let row = &key.row;
        let (value, default) = (row.kind.describe(ValueSyntax::RuleFile), row.default);
        write_to(text, format_args!("| `{}` | {value} | {default} | {} |\n", row.name, row.doc));
    }
}

fn write_to(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("writing to a String cannot fail");
}
