#!/bin/sh
# What the tests of figures to play with need: Debian's Chromium.  Installed where this is root and has apt, at most five minutes of it;
# it is no error where that does not work.  Says then what will be tested.
found() {
    command -v chromium || command -v chromium-browser || command -v google-chrome
}
if ! found > /dev/null && [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    install="timeout 120 apt-get install -qq --no-install-recommends chromium"
    $install > /dev/null 2>&1 || { timeout 60 apt-get update -qq && $install; } > /dev/null 2>&1
fi
if found > /dev/null; then
    echo "figures to play with: tested in $("$(found)" --version)"
else
    echo "figures to play with: no Chromium is installed here; tests that need it are skipped"
fi
