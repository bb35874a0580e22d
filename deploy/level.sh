#!/bin/sh
# Raises a new cluster's feature level to the newest, once, and ends. For the cluster of
# compose.yaml, whose nodes are of one image; nobody will want to go back from the level that it
# begins at. One that is older keeps its level until somebody says `flotilla upgrade`.
set -eu
dir=/var/lib/flotilla-keys
[ -e "$dir/new-cluster" ] || exit 0
tries=60
# Refused until all nodes have met: each try takes a second at least.
until said=$(flotilla --key "$dir/clients/admin.key" upgrade 2>&1); do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || { echo "$said"; echo "the next \`docker compose up\` tries again"; exit 1; }
    sleep 1
done
echo "$said"
rm "$dir/new-cluster"
