#!/bin/sh
# What the tests of clusters need: Slurm, an ssh server and pdsh.  Installed where this is root and has apt, at most three minutes of it;
# nothing is started, and it is no error where it does not work.  Says then what will be tested.
export PATH="$PATH:/usr/sbin:/sbin"
missing() {
    for program in slurmctld slurmd srun sshd ssh pdsh; do
        command -v "$program" > /dev/null || printf ' %s' "$program"
    done
}
if [ -n "$(missing)" ] && [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
    install="timeout 90 apt-get install -qq --no-install-recommends slurmctld slurmd slurm-client openssh-server openssh-client pdsh"
    $install > /dev/null 2>&1 || { timeout 60 apt-get update -qq && $install; } > /dev/null 2>&1
fi
if [ -n "$(missing)" ]; then
    echo "cluster tests: not installed here are$(missing); tests that need them are skipped"
elif unshare --user --map-root-user --net true 2> /dev/null; then
    echo "cluster tests: $(slurmctld -V), ssh and pdsh are here, and run on machines made of this one"
else
    echo "cluster tests: machines are not allowed here; tests that need them are skipped"
fi
