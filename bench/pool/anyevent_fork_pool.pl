# The same measures with AnyEvent::Fork::Pool and one worker; prints `name value` lines. See run.py.
use strict;
use warnings;
use AnyEvent;
use AnyEvent::Fork;
use AnyEvent::Fork::Pool;
use AnyEvent::Fork::RPC;
use Time::HiRes 'time';

my $template = AnyEvent::Fork->new->eval('sub work { $_[0] eq "pid" ? $$ : $_[0] }');

# User and system time of processes with all their threads, microseconds.
sub cpu_us {
    my $total = 0;
    for my $file (map { glob "/proc/$_/task/*/schedstat" } @_) {
        open my $in, '<', $file or next;
        $total += (split ' ', <$in>)[0] / 1000;
    }
    return $total;
}

sub median { my @sorted = sort { $a <=> $b } @_; return $sorted[@sorted / 2] }

sub pool {
    my ($load) = @_;
    return $template->AnyEvent::Fork::Pool::run('main::work', max => 1, idle => 1, load => $load);
}

# One job, waited for.
sub call {
    my ($pool, $what) = @_;
    my $done = AE::cv;
    $pool->($what, sub { $done->send(@_) });
    return $done->recv;
}

# Runs a number of jobs, some of them outstanding at a time: the callback of each submits the next.
sub chain {
    my ($pool, $outstanding, $count) = @_;
    my ($begun, $ended, $done) = (0, 0, AE::cv);
    my $next;
    $next = sub {
        $begun++;
        $pool->('0123456789', sub { ++$ended == $count ? $done->send : $begun < $count && $next->() });
    };
    $next->() for 1 .. $outstanding;
    $done->recv;
}

for ([1, 1, 20_000], [2, 8, 40_000], [16, 64, 150_000]) {
    my ($load, $outstanding, $count) = @$_;
    my $pool = pool($load);
    my @pids = ($$, call($pool, 'pid'));
    chain($pool, $outstanding, $count / 10);
    my ($cpu, $start) = (cpu_us(@pids), time);
    chain($pool, $outstanding, $count);
    printf "jobs_per_s_load_%d %.0f\n", $load, $count / (time - $start);
    printf "cpu_us_load_%d %.3f\n", $load, (cpu_us(@pids) - $cpu) / $count;
}
for (['p50_us', '0123456789', 10_000], ['1mib_p50_us', 'x' x (1 << 20), 100]) {
    my ($name, $what, $count) = @$_;
    my $pool = pool(1);
    call($pool, $what);
    printf "%s %.1f\n", $name, median(map { my $start = time; call($pool, $what); (time - $start) * 1e6 } 1 .. $count);
}
printf "start_p50_us %.1f\n", median(
    map {
        my $start = time;
        my $worker = $template->fork->AnyEvent::Fork::RPC::run('main::work', on_error => sub { });
        call($worker, 'x');
        (time - $start) * 1e6
    } 1 .. 100
);
