# shellcheck shell=sh disable=SC2012 # what the kernel calls an interface is plain
# Tells a node's place among the others; fabric.py reads it.
echo "== who"; uname -n; id -u; id -g
echo "${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}"
echo "== clock"; date +%s.%N
echo "== addresses"; ip -j address show
echo "== speeds"
for interface in /sys/class/net/*; do
  echo "${interface##*/} $(cat "$interface/speed" 2>/dev/null)"
done
echo "== rdma"
for device in /sys/class/infiniband/*; do
  [ -e "$device" ] || continue
  name=${device##*/}
  echo "device $name $(ls "$device/device/net" 2>/dev/null | head -n 1) \
$(cat "$device/ports/1/state" 2>/dev/null)"
  for end in "$device/device" "$(readlink -f "$device/device")/.."; do
    echo "pcie $name $(cat "$end/current_link_width" "$end/max_link_width" \
"$end/current_link_speed" "$end/max_link_speed" 2>/dev/null | cut -d' ' -f1 | tr '\n' ' ')"
  done
  for type in "$device"/ports/1/gid_attrs/types/*; do
    index=${type##*/}
    kind=$(cat "$type" 2>/dev/null) || continue
    echo "gid $name $index $(cat "$device/ports/1/gids/$index") $kind"
  done
done
echo "== tools"
for tool in rsync ping python3 sha256sum; do command -v "$tool" || true; done
