# Threads, pipes and signals of Perl.
# needs: perl
set -e
perl -e 'use threads; my @t = map { my $i=$_; threads->create(sub { `echo $i` }) } 1..5; print map { $_->join } @t; open(F,"|cat"); print F "x\n"; close F; $SIG{ALRM}=sub{die "alarm\n"}; eval { alarm 1; select(undef,undef,undef,5) }; print $@; print join(",",sort glob("/etc/pass*")),"\n"; exec "echo", "done"' 2>&1
