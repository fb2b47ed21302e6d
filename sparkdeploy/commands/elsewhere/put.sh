# shellcheck shell=sh disable=SC2154 # the lines that assign its variables are put before it
# A folder has its name only once it is whole. Somebody else's with that name is the same.
touch "$staged"
if ! mv -T "$staged" "$into/$name" 2>/dev/null; then rm -rf "$staged"; [ -d "$into/$name" ]; fi
# shellcheck disable=SC2012 # the names are ours, and find knows no order of time
ls -1td "$into"/*/ | tail -n "+$((keep + 1))" | while read -r old; do rm -rf "$old"; done
