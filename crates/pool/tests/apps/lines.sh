#!/bin/sh
# A worker as a shell script: one job at a time, so replies need no id.
echo '{"ready": true}'
while read -r line; do
    case $line in
        *'"type":"retire"'*) exit 0 ;;
        *'"args":["die"'*) kill -KILL $$ ;;
        *'"type":"job"'*)
            word=${line#*\"args\":[\"}
            word=${word%%\"*}
            echo "{\"result\": [\"$(echo "$word" | tr a-z A-Z)\"]}"
            ;;
    esac
done
