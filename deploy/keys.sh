#!/bin/sh
# Makes what is missing of a cluster's keys, and says how to have the client's file. For the cluster
# of compose.yaml, whose nodes are on one machine and share a volume; others: docs/security.md.
set -eu
dir=/var/lib/flotilla-keys
if [ ! -e "$dir/cluster.json" ]; then
    flotilla-keys init --dir "$dir" --cluster-id "$FLOTILLA_CLUSTER_ID"
    : > "$dir/new-cluster"  # for level.sh
fi
for node in n1 n2 n3; do
    [ -d "$dir/nodes/$node" ] || flotilla-keys node --dir "$dir" "$node"
done
# The first is one of `init`; a volume that an earlier version made has none.
[ -e "$dir/clients/admin.key" ] || flotilla-keys client --dir "$dir" admin
[ -e "$dir/clients/app.key" ] || flotilla-keys client --dir "$dir" app
echo "clients need a key: docker compose -f deploy/compose.yaml exec -T n1 cat $dir/clients/app.key > app.key"
echo "and then: export FLOTILLA_KEY=app.key"
