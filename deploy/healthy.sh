#!/bin/sh
# Healthy: the node's loop has turned within the last 30 s, so it answers STATUS (with or without a
# leader: a restart would not help an election). It touches this file once a second; nobody is
# asked, and no Python is started, so that a busy machine makes no node look ill.
[ -n "$(find "$FLOTILLA_HEALTH_FILE" -newermt '30 seconds ago' 2>/dev/null)" ] && exit 0
echo "the node has not touched $FLOTILLA_HEALTH_FILE for 30 s: its loop does not turn"
exit 1
