#!/usr/bin/env bash
# Runs `scafo deploy` for the action beside this file, and hands its answer on. Inputs
# come by the environment: none of them is ever part of a script's text.
set -euo pipefail

scafo=${SCAFO:-}
if [ -z "$scafo" ]; then
	scafo="${RUNNER_TEMP:-/tmp}/scafo"
	CGO_ENABLED=0 go build -C "$SOURCE" -o "$scafo" ./cmd/scafo
fi
args=()
read -ra nodes <<<"$NODES"
for node in "${nodes[@]}"; do
	args+=(--node "$node")
done
read -ra more <<<"${ARGS:-}"
answer=$("$scafo" deploy "$DIRECTORY" --oidc --oidc-audience "$AUDIENCE" --json "${args[@]}" "${more[@]}") || {
	code=$?
	printf '%s\n' "$answer"
	exit "$code"
}
printf '%s\n' "$answer"
field() { printf '%s' "$answer" | sed -n "s/^  \"$1\": \"\(.*\)\",\{0,1\}$/\1/p" | head -n 1; }
{
	echo "url=$(field url)"
	echo "deployment=$(field deployment)"
} >>"${GITHUB_OUTPUT:-/dev/null}"
