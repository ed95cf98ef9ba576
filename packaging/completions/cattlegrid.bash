# bash completion for cattlegrid: written by `cargo xtask docs` from the options of the program

_cattlegrid() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command=serve words='' IFS=$' \t\n'
    COMPREPLY=()
    [[ $COMP_CWORD -gt 1 && ${COMP_WORDS[1]} != -* ]] && command=${COMP_WORDS[1]}
    if [[ $COMP_CWORD -eq 1 && $cur != -* ]]; then
        COMPREPLY=($(compgen -W 'serve demo bench check advise doctor nodes ping follow objects help version' -- "$cur"))
        return
    fi
    case $command in
    serve)
        case $prev in
        -p|--port) return ;;
        -l|--listen) return ;;
        -s|--unix-socket) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        -a|--unix-mask) return ;;
        -b|--listen-backlog) return ;;
        -u|--user) COMPREPLY=($(compgen -u -- "$cur")); return ;;
        -m|--memory-limit) return ;;
        -I|--max-item-size) return ;;
        -t|--threads) return ;;
        -c|--conn-limit) return ;;
        -R|--max-reqs-per-event) return ;;
        -B|--protocol) COMPREPLY=($(compgen -W 'auto ascii binary' -- "$cur")); return ;;
        -Y|--auth-file) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        -P|--pidfile) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        -D|--stat-delimiter) return ;;
        --config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --options-file) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --objects) COMPREPLY=($(compgen -d -- "$cur")); return ;;
        --log-format) COMPREPLY=($(compgen -W 'text json' -- "$cur")); return ;;
        --admin) return ;;
        --admin-token) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --slow-log) return ;;
        --slow-calls) return ;;
        --drain) return ;;
        --unsent-memory) return ;;
        -o|--extended)
            local before=''
            [[ $cur == *,* ]] && before=${cur%,*},
            compopt -o nospace 2>/dev/null
            COMPREPLY=($(compgen -P "$before" -W 'idle_timeout= maxconns_fast no_maxconns_fast no_modern io_uring watcher_logbuf_size= worker_logbuf_size= drop_privileges no_drop_privileges relaxed_privileges track_sizes debugtime ssl_chain_cert= ssl_key= ssl_keyformat= ssl_verify_mode= ssl_ca_cert= ssl_min_version= ssl_ciphers= ssl_session_cache ssl_wbuf_size ssl_kernel_tls read_buf_mem_limit resp_obj_mem_limit hashpower no_hashexpand hash_algorithm tail_repair_time slab_reassign no_slab_reassign slab_automove no_slab_automove slab_automove_ratio slab_automove_window slab_automove_freeratio slab_chunk_max slab_sizes no_chunked_items lru_crawler no_lru_crawler lru_crawler_sleep lru_crawler_tocrawl lru_maintainer no_lru_maintainer hot_lru_pct warm_lru_pct hot_max_factor warm_max_factor temporary_ttl inline_ascii_resp no_inline_ascii_resp modern' -- "${cur##*,}"))
            return ;;
        -f|--slab-growth-factor) return ;;
        -n|--slab-min-size) return ;;
        -U|--udp-port) return ;;
        -N|--napi_ids) return ;;
        esac
        words='-p --port -l --listen -s --unix-socket -a --unix-mask -b --listen-backlog -u --user -m --memory-limit -M --disable-evictions -I --max-item-size -t --threads -c --conn-limit -R --max-reqs-per-event -C --disable-cas -F --disable-flush-all -X --disable-dumping -W --disable-watch -A --enable-shutdown -B --protocol -Y --auth-file -S --enable-sasl -Z --enable-ssl -d --daemon -P --pidfile -r --enable-coredumps -k --lock-memory -L --enable-largepages -D --stat-delimiter -v --verbose --config --options-file --objects --log-format --admin --admin-token --slow-log --slow-calls --drain --unsent-memory -h --help -V --version -i --license -o --extended -f --slab-growth-factor -n --slab-min-size -U --udp-port -N --napi_ids --help-all' ;;
    demo)
        case $prev in
        --picture) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        esac
        words='--keep --picture -h --help'
        ;;
    bench)
        case $prev in
        -c|--connections) return ;;
        -t|--threads) return ;;
        -d|--depth) return ;;
        --multiget) return ;;
        --tls-ca) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        -s|--seconds) return ;;
        -n|--requests) return ;;
        --warmup) return ;;
        -k|--keys) return ;;
        --key-size) return ;;
        --value-size) return ;;
        --ttl) return ;;
        --flags) return ;;
        --ratio) return ;;
        --distribution) return ;;
        --drift) return ;;
        --one-hit) return ;;
        --trace) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --stampede) return ;;
        --pid) return ;;
        --vs) return ;;
        --vs-pid) return ;;
        --turns) return ;;
        --seed) return ;;
        esac
        words='-c --connections -t --threads -d --depth --multiget --binary --reconnect --tls --tls-ca --resume -s --seconds -n --requests --warmup -k --keys --key-size --value-size --ttl --flags --ratio --distribution --drift --one-hit --fill-on-miss --trace --stampede --pid --vs --vs-pid --turns --seed --json -h --help'
        ;;
    check)
        case $prev in
        --key) return ;;
        --try) return ;;
        --server) return ;;
        esac
        words='--key --try --server --connect -h --help'
        [[ $cur != -* ]] && COMPREPLY=($(compgen -f -- "$cur"))
        ;;
    advise)
        case $prev in
        --seconds) return ;;
        esac
        words='--seconds -h --help'
        ;;
    doctor)
        case $prev in
        --pid) return ;;
        esac
        words='--pid --json -h --help'
        ;;
    nodes)
        case $prev in
        esac
        words='-h --help'
        ;;
    ping)
        case $prev in
        esac
        words='-h --help --admin'
        ;;
    follow)
        case $prev in
        --to) return ;;
        --distribution) COMPREPLY=($(compgen -W 'ketama ketama_weighted all' -- "$cur")); return ;;
        --prefix) return ;;
        --on-gap) COMPREPLY=($(compgen -W 'warn flush' -- "$cur")); return ;;
        --log) return ;;
        esac
        words='--to --distribution --prefix --on-gap --log -h --help --connect'
        [[ $cur != -* ]] && COMPREPLY=($(compgen -f -- "$cur"))
        ;;
    objects)
        case $prev in
        --at) return ;;
        --count) return ;;
        --objects) COMPREPLY=($(compgen -d -- "$cur")); return ;;
        --config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        esac
        words='-h --help --at --count --objects --config'
        [[ $COMP_CWORD -eq 2 ]] && words+=' list call test lint bench'
        [[ $cur != -* ]] && COMPREPLY=($(compgen -f -- "$cur"))
        ;;
    help)
        case $prev in
        esac
        words=''
        [[ $COMP_CWORD -eq 2 ]] && words+=' demo bench check advise doctor nodes ping follow objects'
        ;;
    version)
        case $prev in
        esac
        words=''
        ;;
    esac
    COMPREPLY+=($(compgen -W "$words" -- "$cur"))
}

complete -o filenames -F _cattlegrid cattlegrid
