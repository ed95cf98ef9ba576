# What a developer runs. `just` lists it.
_default:
    @just --list

# After an edit: layout, lints and tests of what is changed, or of these crates
quick *crates:
    cargo xtask quick {{crates}}

# Everything; installs what is missing
test *options:
    cargo xtask test {{options}}

# Random input to all targets, or to one: just fuzz store -max_total_time=60
fuzz *target:
    cargo xtask {{ if target == "" { "test --stage fuzz" } else { "fuzz " + target } }}

# A command whose processes are stopped and slowed at random
disturb *command:
    cargo xtask disturb {{command}}

# Load a server and verify every reply: just bench HOST:PORT
bench *options:
    cargo run --release -- bench {{options}}

# Instructions per hundred requests, by Callgrind (Debian's valgrind; cargo install gungraun-runner)
counts *options:
    cargo bench -p cattlegrid-counts {{options}}

# Unmodified clients; options are pytest's
conformance *options:
    cargo build --profile fast -p cattlegrid
    conformance/run.sh {{options}}

# Three etcd, three nodes, a PostgreSQL and a shop, on loopback; ends by itself
cluster *options:
    cargo build --profile fast -p cattlegrid
    conformance/setup.sh
    target/conformance/venv/bin/python conformance/cluster.py --server-bin target/fast/cattlegrid {{options}}

# Write the generated pages and build the documentation
docs:
    cargo xtask docs
    cargo doc --workspace --no-deps

# The documentation as a site, in target/site; its links are checked
site:
    cargo xtask site

# The optimised program, its symbols in a file beside it
release:
    cargo xtask release

# The tour
demo *options:
    cargo run --release -- demo {{options}}
