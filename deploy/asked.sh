#!/bin/bash
# Healthy: /healthz of the node's own page says so. It is asked on the container's loopback, where
# nobody else is, so without a token. bash does it by itself: no Python is started for it.
trap '' PIPE  # a node that closes at once has not answered, and that is said
answer_s_max=10
address=$FLOTILLA_HTTP_LISTEN
exec 3<>"/dev/tcp/${address%:*}/${address##*:}" || exit 1
printf 'GET /healthz HTTP/1.1\r\nhost: %s\r\nconnection: close\r\n\r\n' "$address" >&3
read -r -t "$answer_s_max" -u 3 _ status _
[ "$status" = 200 ] && exit 0
echo "/healthz of $address: ${status:-no answer in $answer_s_max s}"
while read -r -t 1 -u 3 line; do reason=$line; done  # the last line says why
echo "$reason"
exit 1
