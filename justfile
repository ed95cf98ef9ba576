# What a developer runs. `just` lists it.
_default:
    @just --list

# Quick: layout, lints, unit tests
check:
    cargo xtask test --stage format --stage lints --stage unit --stage pool

# Everything; installs what is missing
test *options:
    cargo xtask test {{options}}

# Random input to the parsers and the store
fuzz:
    cargo xtask test --stage fuzz-parsers --stage fuzz-states

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

# Write the generated pages and build the documentation
docs:
    cargo xtask docs
    cargo doc --workspace --no-deps

# The tour
demo *options:
    cargo run --release -- demo {{options}}
