# Sourced by the scripts of registered runs. A run can be stopped at any time: the same command goes on where it ended, item by item.
# UQAC: the program. A run has the lowest priority, and one process at a time works on a folder.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
uqac=${UQAC:-$root/target/release/uqac}
python=${PYTHON:-python3}

fail() { echo "${0##*/}: $*" >&2; exit 2; }

# evaluate FOLDER ARGUMENTS...: one run of `uqac eval`; its output, results included, goes to FOLDER.log. Items that failed (exit code 1)
# are recorded as errors and do not stop the rest.
evaluate() {
  local folder=$1 status=0; shift
  mkdir -p "$folder"
  echo "$(date -u +%F\ %R) $folder: uqac eval $*"
  ( if command -v flock > /dev/null; then flock -n 9 || fail "$folder is in use by another process"; fi
    nice -n 19 "$uqac" eval "$@" --quiet -o "$folder" < /dev/null >> "$folder.log" 2>&1 9>&- ) 9> "$folder.lock" || status=$?
  [ "$status" -le 1 ] || { tail -n 5 "$folder.log" >&2; fail "$folder: uqac eval ended with code $status"; }
}

# part FILE FROM TO FOLDER: a folder with lines FROM to TO of a benchmark's file, under the file's name, for --data.
part() {
  mkdir -p "$4"
  sed -n "$2,$3p" "$1" > "$4/${1##*/}.new"
  mv "$4/${1##*/}.new" "$4/${1##*/}"
}

# only FOLDER PATTERN: the one file that matches.
only() {
  local found; found=$(find -L "$1" -maxdepth 1 -name "$2" | sort)
  [ "$(grep -c . <<< "$found")" = 1 ] || fail "$1 must have exactly one file $2; found: ${found:-none}"
  echo "$found"
}
