#!/bin/sh
# Greetings, by JSON lines. Rule: greeting:{name}
# The name stays as it is written in JSON, so that nothing needs to be escaped. Answers need no id: there is one job at a time.
printf '{"ready":true}\n'
while IFS= read -r line; do
    case $line in
        *'"type":"job"'*) ;;
        *'"type":"retire"'*) exit 0 ;;
        *'"type":"ping"'*) printf '{"pong":true}\n'; continue ;;
        *) continue ;;
    esac
    name=$(printf '%s\n' "$line" | sed -nE 's/.*"args":\{"name":"(([^"\\]|\\.)+)".*/\1/p')
    case $name in
        '') printf '{"error":"the rule has no capture name, or it is not UTF-8"}\n' ;;
        nobody) printf '{"not_found":5}\n' ;;
        *) printf '{"value":"Hello, %s!","ttl":60,"tags":["greetings"]}\n' "$name" ;;
    esac
done
