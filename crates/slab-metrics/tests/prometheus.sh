#!/bin/sh
# A real Prometheus against a running page: starts one that scrapes ADDRESS each second, waits until
# QUERY has an answer, prints it, and stops what it started. Needs Debian's package `prometheus`
# (it brings promtool) and curl.
#
#   tests/prometheus.sh [ADDRESS [QUERY]]
#
# Status: 0 if the page is clean and the query was answered with data, 1 otherwise, 2 if a tool is
# missing.
set -eu

address=${1:-127.0.0.1:9465}
query=${2:-sum by (pool, state) (slab_pool_chunks)}
seconds=${SECONDS_TO_WAIT:-30}

for tool in prometheus promtool curl; do
    if ! command -v "$tool" >/dev/null; then
        echo "prometheus.sh: $tool is not installed (apt-get install prometheus curl)" >&2
        exit 2
    fi
done

work=$(mktemp -d)
server=
stop() {
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
    fi
    rm -rf "$work"
}
trap stop EXIT
trap 'exit 1' INT TERM

curl -sS --fail --max-time 5 "http://$address/metrics" >"$work/page" || exit 1
promtool check metrics <"$work/page" || exit 1
echo "promtool: $(grep -c '^# TYPE' "$work/page") metrics, $(grep -c '^[a-z]' "$work/page") series, no problems"

cat >"$work/prometheus.yml" <<EOF
scrape_configs:
  - job_name: packet-slab
    scrape_interval: 1s
    scrape_timeout: 1s
    static_configs:
      - targets: ["$address"]
EOF
promtool check config "$work/prometheus.yml" >/dev/null || exit 1

prometheus --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/data" \
    --web.listen-address=127.0.0.1:0 >"$work/log" 2>&1 &
server=$!
at=
while [ -z "$at" ]; do
    # The log says which port it got.
    at=$(sed -n 's/.*msg="Listening on".* address=\([^ ]*\).*/\1/p' "$work/log")
    if ! kill -0 "$server" 2>/dev/null; then
        echo "prometheus.sh: Prometheus did not start:" >&2
        cat "$work/log" >&2
        exit 1
    fi
    [ -n "$at" ] || sleep 0.2
done

deadline=$(($(date +%s) + seconds))
while [ "$(date +%s)" -lt "$deadline" ]; do
    answer=$(curl -s --max-time 5 --data-urlencode "query=$query" "http://$at/api/v1/query") || answer=
    case $answer in
    *'"status":"error"'*)
        echo "prometheus.sh: $answer" >&2
        exit 1
        ;;
    *'"status":"success"'*'"value":['*)
        echo "query: $query"
        promtool query instant "http://$at" "$query"
        exit 0
        ;;
    esac
    sleep 0.5
done
echo "prometheus.sh: no data for '$query' in $seconds s; the target:" >&2
curl -s "http://$at/api/v1/targets" >&2 || true
echo >&2
exit 1
