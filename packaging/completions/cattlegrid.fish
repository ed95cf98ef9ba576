# fish completion for cattlegrid: written by `cargo xtask docs` from the options of the program

complete -c cattlegrid -f

function __cattlegrid_command
    set -l words (commandline -opc)
    if test (count $words) -gt 1; and not string match -q -- '-*' $words[2]
        echo $words[2]
    else
        echo serve
    end
end

function __cattlegrid_is
    contains -- (__cattlegrid_command) $argv
end

function __cattlegrid_first
    test (count (commandline -opc)) -eq 1
end

complete -c cattlegrid -n __cattlegrid_first -a serve -d 'the server, with memcached\'s options'
complete -c cattlegrid -n __cattlegrid_first -a demo -d 'a tour of what the server does'
complete -c cattlegrid -n __cattlegrid_first -a bench -d 'load a server, verify every reply'
complete -c cattlegrid -n __cattlegrid_first -a check -d 'what a rule file means'
complete -c cattlegrid -n __cattlegrid_first -a advise -d 'the rule file that fits a server\'s traffic'
complete -c cattlegrid -n __cattlegrid_first -a doctor -d 'what to change on this machine'
complete -c cattlegrid -n __cattlegrid_first -a top -d 'a live view of a server, in the terminal'
complete -c cattlegrid -n __cattlegrid_first -a nodes -d 'the nodes of a server\'s fleet'
complete -c cattlegrid -n __cattlegrid_first -a ping -d 'whether a server answers'
complete -c cattlegrid -n __cattlegrid_first -a follow -d 'rows change: keys go from memcached'
complete -c cattlegrid -n __cattlegrid_first -a objects -d 'objects with methods, without a server'
complete -c cattlegrid -n __cattlegrid_first -a help -d 'the help of a subcommand'
complete -c cattlegrid -n __cattlegrid_first -a version -d 'the version'

complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s p -l port -x -d 'TCP port to listen on'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s l -l listen -x -d 'Addresses to listen on; * is every address'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s s -l unix-socket -r -F -d 'Unix socket to listen on'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s a -l unix-mask -x -d 'Access bits of the unix socket, in octal'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s b -l listen-backlog -x -d 'Connections that the kernel may hold'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s u -l user -x -a '(__fish_complete_users)' -d 'User to become once the sockets are open'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s m -l memory-limit -x -d 'Memory for items, in MiB'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s M -l disable-evictions -d 'Answer an error when memory is full'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s I -l max-item-size -x -d 'Largest item'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s t -l threads -x -d 'Threads that serve connections'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s c -l conn-limit -x -d 'Simultaneous connections'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s R -l max-reqs-per-event -x -d 'Requests of a connection in one turn'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s C -l disable-cas -d 'Hide CAS values from clients'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s F -l disable-flush-all -d 'Refuse flush_all'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s X -l disable-dumping -d 'Refuse stats cachedump and lru_crawler metadump'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s W -l disable-watch -d 'Refuse watch'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s A -l enable-shutdown -d 'Allow the command shutdown'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s B -l protocol -x -a 'auto ascii binary' -d 'ascii, binary, or auto'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s Y -l auth-file -r -F -d 'Text clients log in: file of user:password'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s S -l enable-sasl -d 'Binary clients must log in; see --help-all'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s Z -l enable-ssl -d 'Speak TLS on TCP'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s d -l daemon -d 'Run in the background, in /'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s P -l pidfile -r -F -d 'Write the process id to this file'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s r -l enable-coredumps -d 'Raise the limit on core files'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s k -l lock-memory -d 'Keep memory from being paged out'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s L -l enable-largepages -d 'Ask the kernel for large pages for items'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s D -l stat-delimiter -x -d 'What ends the prefix in stats detail'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s v -l verbose -d 'Log what happens'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -l config -r -F -d 'Rule file: protection, tags, loaders, options'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -l options-file -r -F -d 'Options by lines: /etc/memcached.conf'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -l objects -x -a '(__fish_complete_directories)' -d 'Types of objects on, and those of this dir'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -l log-format -x -a 'text json' -d 'text or json'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -l admin -x -d 'HTTP pages for monitoring, on this address'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -l admin-token -r -F -d 'File of the token that their readers send'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -l slow-log -x -d 'What is slow for get @slow'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -l slow-calls -x -d 'The same of calls of objects'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -l drain -x -d 'Longest wait of SIGTERM for held requests'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -l unsent-memory -x -d 'Memory for replies that are not taken yet'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s h -l help -d 'Print the most used options and exit'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s V -l version -d 'Print the version and exit'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s i -l license -d 'Print the licence and exit'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s o -l extended -x -a 'idle_timeout maxconns_fast no_maxconns_fast no_modern io_uring watcher_logbuf_size worker_logbuf_size drop_privileges no_drop_privileges relaxed_privileges track_sizes debugtime ssl_chain_cert ssl_key ssl_keyformat ssl_verify_mode ssl_ca_cert ssl_min_version ssl_ciphers ssl_session_cache ssl_wbuf_size ssl_kernel_tls read_buf_mem_limit resp_obj_mem_limit hashpower no_hashexpand hash_algorithm tail_repair_time slab_reassign no_slab_reassign slab_automove no_slab_automove slab_automove_ratio slab_automove_window slab_automove_freeratio slab_chunk_max slab_sizes no_chunked_items lru_crawler no_lru_crawler lru_crawler_sleep lru_crawler_tocrawl lru_maintainer no_lru_maintainer hot_lru_pct warm_lru_pct hot_max_factor warm_max_factor temporary_ttl inline_ascii_resp no_inline_ascii_resp modern' -d 'More options, by commas; see --help-all'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s f -l slab-growth-factor -x -d 'without effect'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s n -l slab-min-size -x -d 'without effect'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s U -l udp-port -x -d 'without effect'
complete -c cattlegrid -n '__cattlegrid_is serve doctor' -s N -l napi_ids -x -d 'without effect'
complete -c cattlegrid -n '__cattlegrid_is serve' -l help-all -d 'print the help with all options'

complete -c cattlegrid -n '__cattlegrid_is demo' -l keep
complete -c cattlegrid -n '__cattlegrid_is demo' -l open
complete -c cattlegrid -n '__cattlegrid_is demo' -l picture -r -F
complete -c cattlegrid -n '__cattlegrid_is demo' -s h -l help

complete -c cattlegrid -n '__cattlegrid_is bench' -s c -l connections -x
complete -c cattlegrid -n '__cattlegrid_is bench' -s t -l threads -x
complete -c cattlegrid -n '__cattlegrid_is bench' -s d -l depth -x
complete -c cattlegrid -n '__cattlegrid_is bench' -l multiget -x
complete -c cattlegrid -n '__cattlegrid_is bench' -l binary
complete -c cattlegrid -n '__cattlegrid_is bench' -l reconnect
complete -c cattlegrid -n '__cattlegrid_is bench' -l tls
complete -c cattlegrid -n '__cattlegrid_is bench' -l tls-ca -r -F
complete -c cattlegrid -n '__cattlegrid_is bench' -l resume
complete -c cattlegrid -n '__cattlegrid_is bench' -s s -l seconds -x
complete -c cattlegrid -n '__cattlegrid_is bench' -s n -l requests -x
complete -c cattlegrid -n '__cattlegrid_is bench' -l warmup -x
complete -c cattlegrid -n '__cattlegrid_is bench' -s k -l keys -x
complete -c cattlegrid -n '__cattlegrid_is bench' -l key-size -x
complete -c cattlegrid -n '__cattlegrid_is bench' -l value-size -x
complete -c cattlegrid -n '__cattlegrid_is bench' -l ttl -x
complete -c cattlegrid -n '__cattlegrid_is bench' -l flags -x
complete -c cattlegrid -n '__cattlegrid_is bench' -l ratio -x
complete -c cattlegrid -n '__cattlegrid_is bench' -l distribution -x
complete -c cattlegrid -n '__cattlegrid_is bench' -l drift -x
complete -c cattlegrid -n '__cattlegrid_is bench' -l one-hit -x
complete -c cattlegrid -n '__cattlegrid_is bench' -l fill-on-miss
complete -c cattlegrid -n '__cattlegrid_is bench' -l trace -r -F
complete -c cattlegrid -n '__cattlegrid_is bench' -l stampede -x
complete -c cattlegrid -n '__cattlegrid_is bench' -l pid -x
complete -c cattlegrid -n '__cattlegrid_is bench' -l vs -x
complete -c cattlegrid -n '__cattlegrid_is bench' -l vs-pid -x
complete -c cattlegrid -n '__cattlegrid_is bench' -l turns -x
complete -c cattlegrid -n '__cattlegrid_is bench' -l seed -x
complete -c cattlegrid -n '__cattlegrid_is bench' -l json
complete -c cattlegrid -n '__cattlegrid_is bench' -s h -l help

complete -c cattlegrid -n '__cattlegrid_is check' -l key -x
complete -c cattlegrid -n '__cattlegrid_is check' -l try -x
complete -c cattlegrid -n '__cattlegrid_is check' -l server -x
complete -c cattlegrid -n '__cattlegrid_is check' -l connect
complete -c cattlegrid -n '__cattlegrid_is check' -s h -l help
complete -c cattlegrid -n '__cattlegrid_is check' -F

complete -c cattlegrid -n '__cattlegrid_is advise' -l seconds -x
complete -c cattlegrid -n '__cattlegrid_is advise' -l shadow -x
complete -c cattlegrid -n '__cattlegrid_is advise' -l no-dump
complete -c cattlegrid -n '__cattlegrid_is advise' -l tls
complete -c cattlegrid -n '__cattlegrid_is advise' -l tls-ca -r -F
complete -c cattlegrid -n '__cattlegrid_is advise' -l user -x
complete -c cattlegrid -n '__cattlegrid_is advise' -l password-file -r -F
complete -c cattlegrid -n '__cattlegrid_is advise' -s h -l help

complete -c cattlegrid -n '__cattlegrid_is doctor' -l pid -x
complete -c cattlegrid -n '__cattlegrid_is doctor' -l json
complete -c cattlegrid -n '__cattlegrid_is doctor' -s h -l help
complete -c cattlegrid -n '__cattlegrid_is doctor' -F

complete -c cattlegrid -n '__cattlegrid_is top' -l once
complete -c cattlegrid -n '__cattlegrid_is top' -l view -x
complete -c cattlegrid -n '__cattlegrid_is top' -s n -l interval -x
complete -c cattlegrid -n '__cattlegrid_is top' -l login -r -F
complete -c cattlegrid -n '__cattlegrid_is top' -l tls
complete -c cattlegrid -n '__cattlegrid_is top' -l tls-ca -r -F
complete -c cattlegrid -n '__cattlegrid_is top' -l ascii
complete -c cattlegrid -n '__cattlegrid_is top' -s h -l help

complete -c cattlegrid -n '__cattlegrid_is nodes' -s h -l help

complete -c cattlegrid -n '__cattlegrid_is ping' -s h -l help
complete -c cattlegrid -n '__cattlegrid_is ping' -l admin

complete -c cattlegrid -n '__cattlegrid_is follow' -l to -x
complete -c cattlegrid -n '__cattlegrid_is follow' -l distribution -x -a 'ketama ketama_weighted all'
complete -c cattlegrid -n '__cattlegrid_is follow' -l prefix -x
complete -c cattlegrid -n '__cattlegrid_is follow' -l on-gap -x -a 'warn flush'
complete -c cattlegrid -n '__cattlegrid_is follow' -l log -x
complete -c cattlegrid -n '__cattlegrid_is follow' -s h -l help
complete -c cattlegrid -n '__cattlegrid_is follow' -l connect
complete -c cattlegrid -n '__cattlegrid_is follow' -F

complete -c cattlegrid -n '__cattlegrid_is objects' -s h -l help
complete -c cattlegrid -n '__cattlegrid_is objects' -l at -x
complete -c cattlegrid -n '__cattlegrid_is objects' -l config -r -F
complete -c cattlegrid -n '__cattlegrid_is objects' -l count -x
complete -c cattlegrid -n '__cattlegrid_is objects' -l objects -x -a '(__fish_complete_directories)'
complete -c cattlegrid -n '__cattlegrid_is objects' -a 'list call test lint bench'
complete -c cattlegrid -n '__cattlegrid_is objects' -F

complete -c cattlegrid -n '__cattlegrid_is help' -a 'demo bench check advise doctor top nodes ping follow objects'

