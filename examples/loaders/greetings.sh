#!/bin/sh
# Greetings, by JSON lines. Rule: greeting:{name}
# The name stays as it is written in JSON, so that nothing needs to be escaped.
printf '{"ready":true}\n'
while IFS= read -r line; do
    case $line in
        *'"type":"job"'*) ;;
        *'"type":"retire"'*) exit 0 ;;
        *'"type":"ping"'*) printf '{"pong":true}\n'; continue ;;
        *) continue ;;
    esac
    id=$(printf '%s\n' "$line" | sed -nE 's/.*"type":"job","id":"([0-9]+)".*/\1/p')
    name=$(printf '%s\n' "$line" | sed -nE 's/.*"args":\{"name":"(([^"\\]|\\.)+)".*/\1/p')
    case $name in
        '') printf '{"id":"%s","error":"the rule has no capture name, or it is not UTF-8"}\n' "$id" ;;
        nobody) printf '{"id":"%s","not_found":5}\n' "$id" ;;
        *) printf '{"id":"%s","value":"Hello, %s!","ttl":60,"tags":["greetings"]}\n' "$id" "$name" ;;
    esac
done
