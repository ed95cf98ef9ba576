# bash completion for cattlegrid: written by `cargo xtask docs` from the options of the program

_cattlegrid_words() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur"); }

# $1: -f files, -d directories; $2: what stands before the name and stays.
_cattlegrid_files() {
    local name=${cur#"$2"}
    name=${name#[\"\']}
    mapfile -t COMPREPLY < <(compgen "$1" -P "$2" -- "${name//\\/}")
    compopt -o filenames 2>/dev/null
}

_cattlegrid() {
    local cur prev command=serve words='' at=$COMP_CWORD last=${COMP_WORDS[COMP_CWORD]} before='' IFS=$' \t\n'
    COMPREPLY=()
    cur=$last
    while ((at > 1)) && [[ ${COMP_WORDS[at]} == = || ${COMP_WORDS[at-1]} == = ]]; do
        cur=${COMP_WORDS[--at]}$cur
    done
    prev=${COMP_WORDS[at-1]}
    [[ $last == = ]] && last=''
    if [[ $cur == --*=* ]]; then
        prev=${cur%%=*} before=${cur%%=*}= cur=${cur#*=}
    fi
    _cattlegrid_all
    # Readline has kept what is before the last word.
    before=$before$cur
    if [[ $before == *"$last" && ${#COMPREPLY[@]} -gt 0 ]]; then
        local kept=${before%"$last"} own=${before%"$cur"}
        local -i index
        for index in "${!COMPREPLY[@]}"; do
            COMPREPLY[index]=$own${COMPREPLY[index]}
            COMPREPLY[index]=${COMPREPLY[index]#"$kept"}
        done
    fi
}

_cattlegrid_all() {
    [[ $at -gt 1 && ${COMP_WORDS[1]} != -* ]] && command=${COMP_WORDS[1]}
    if [[ $at -eq 1 && $before$cur != -* ]]; then
        _cattlegrid_words 'serve demo bench check advise doctor top nodes ping follow objects help version'
        return
    fi
    case $command in
    serve|doctor)
        case $prev in
        -p|--port) return ;;
        -l|--listen) return ;;
        -s|--unix-socket) _cattlegrid_files -f ''; return ;;
        -a|--unix-mask) return ;;
        -b|--listen-backlog) return ;;
        -u|--user) mapfile -t COMPREPLY < <(compgen -u -- "$cur"); return ;;
        -m|--memory-limit) return ;;
        -I|--max-item-size) return ;;
        -t|--threads) return ;;
        -c|--conn-limit) return ;;
        -R|--max-reqs-per-event) return ;;
        -B|--protocol) _cattlegrid_words 'auto ascii binary'; return ;;
        -Y|--auth-file) _cattlegrid_files -f ''; return ;;
        -P|--pidfile) _cattlegrid_files -f ''; return ;;
        -D|--stat-delimiter) return ;;
        --config) _cattlegrid_files -f ''; return ;;
        --options-file) _cattlegrid_files -f ''; return ;;
        --objects) _cattlegrid_files -d ''; return ;;
        --log-format) _cattlegrid_words 'text json'; return ;;
        --admin) return ;;
        --admin-token) _cattlegrid_files -f ''; return ;;
        --slow-log) return ;;
        --slow-calls) return ;;
        --drain) return ;;
        --unsent-memory) return ;;
        -o|--extended)
            local head='' piece=${cur##*,}
            [[ $cur == *,* ]] && head=${cur%,*},
            case $piece in
            ssl_chain_cert=*|ssl_key=*|ssl_ca_cert=*) _cattlegrid_files -f "$head${piece%%=*}=" ;;
            *)
                compopt -o nospace 2>/dev/null
                mapfile -t COMPREPLY < <(compgen -P "$head" -W 'idle_timeout= maxconns_fast no_maxconns_fast no_modern io_uring watcher_logbuf_size= worker_logbuf_size= drop_privileges no_drop_privileges relaxed_privileges track_sizes debugtime ssl_chain_cert= ssl_key= ssl_keyformat= ssl_verify_mode= ssl_ca_cert= ssl_min_version= ssl_ciphers= ssl_session_cache ssl_wbuf_size ssl_kernel_tls read_buf_mem_limit resp_obj_mem_limit hashpower no_hashexpand hash_algorithm tail_repair_time slab_reassign no_slab_reassign slab_automove no_slab_automove slab_automove_ratio slab_automove_window slab_automove_freeratio slab_chunk_max slab_sizes no_chunked_items lru_crawler no_lru_crawler lru_crawler_sleep lru_crawler_tocrawl lru_maintainer no_lru_maintainer hot_lru_pct warm_lru_pct hot_max_factor warm_max_factor temporary_ttl inline_ascii_resp no_inline_ascii_resp modern' -- "$piece") ;;
            esac
            return ;;
        -f|--slab-growth-factor) return ;;
        -n|--slab-min-size) return ;;
        -U|--udp-port) return ;;
        -N|--napi_ids) return ;;
        esac
        words='-p --port -l --listen -s --unix-socket -a --unix-mask -b --listen-backlog -u --user -m --memory-limit -M --disable-evictions -I --max-item-size -t --threads -c --conn-limit -R --max-reqs-per-event -C --disable-cas -F --disable-flush-all -X --disable-dumping -W --disable-watch -A --enable-shutdown -B --protocol -Y --auth-file -S --enable-sasl -Z --enable-ssl -d --daemon -P --pidfile -r --enable-coredumps -k --lock-memory -L --enable-largepages -D --stat-delimiter -v --verbose --config --options-file --objects --log-format --admin --admin-token --slow-log --slow-calls --drain --unsent-memory -h --help -V --version -i --license -o --extended -f --slab-growth-factor -n --slab-min-size -U --udp-port -N --napi_ids --help-all'
        if [[ $command == doctor ]]; then
            [[ $prev == --pid ]] && words='' && return
            words+=' --pid --json -h --help'
            [[ $cur != -* ]] && _cattlegrid_files -f ''
        fi
        ;;
    demo)
        case $prev in
        --picture) _cattlegrid_files -f ''; return ;;
        esac
        words='--keep --open --picture -h --help'
        ;;
    bench)
        case $prev in
        -c|--connections) return ;;
        -t|--threads) return ;;
        -d|--depth) return ;;
        --multiget) return ;;
        --tls-ca) _cattlegrid_files -f ''; return ;;
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
        --trace) _cattlegrid_files -f ''; return ;;
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
        [[ $cur != -* ]] && _cattlegrid_files -f ''
        ;;
    advise)
        case $prev in
        --seconds) return ;;
        --shadow) return ;;
        --tls-ca) _cattlegrid_files -f ''; return ;;
        --user) return ;;
        --password-file) _cattlegrid_files -f ''; return ;;
        esac
        words='--seconds --shadow --no-dump --tls --tls-ca --user --password-file -h --help'
        ;;
    top)
        case $prev in
        --view) return ;;
        -n|--interval) return ;;
        --login) _cattlegrid_files -f ''; return ;;
        --tls-ca) _cattlegrid_files -f ''; return ;;
        esac
        words='--once --view -n --interval --login --tls --tls-ca --ascii -h --help'
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
        --distribution) _cattlegrid_words 'ketama ketama_weighted all'; return ;;
        --prefix) return ;;
        --on-gap) _cattlegrid_words 'warn flush'; return ;;
        --log) return ;;
        esac
        words='--to --distribution --prefix --on-gap --log -h --help --connect'
        [[ $cur != -* ]] && _cattlegrid_files -f ''
        ;;
    objects)
        case $prev in
        --at) return ;;
        --config) _cattlegrid_files -f ''; return ;;
        --count) return ;;
        --objects) _cattlegrid_files -d ''; return ;;
        esac
        words='-h --help --at --config --count --objects'
        [[ $at -eq 2 ]] && words+=' list call test lint bench'
        [[ $cur != -* ]] && _cattlegrid_files -f ''
        ;;
    help)
        case $prev in
        esac
        words=''
        [[ $at -eq 2 ]] && words+=' demo bench check advise doctor top nodes ping follow objects'
        ;;
    version)
        case $prev in
        esac
        words=''
        ;;
    esac
    local -a files=("${COMPREPLY[@]}")
    _cattlegrid_words "$words"
    COMPREPLY=("${files[@]}" "${COMPREPLY[@]}")
}

complete -F _cattlegrid cattlegrid
