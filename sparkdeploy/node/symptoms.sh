# shellcheck shell=sh
# Tells of troubles that grow slowly; symptoms.py reads it. Two looks, apart by a part of a second:
# what counts up is only known from both. All limits together stay under two seconds.
look() {
  echo "== look"
  cat /proc/uptime
  grep -E '^pswp(in|out) ' /proc/vmstat
  echo "gpu $(timeout "$1" nvidia-smi --format=csv,noheader,nounits --query-gpu=\
name,utilization.gpu,clocks.sm,clocks.max.sm,power.draw,clocks_event_reasons.active | head -n 1)"
}
# A user who may not read the kernel's log gets an empty one, which is no log without complaints.
driver_log() {
  log=$(timeout 0.7 journalctl --dmesg --boot --quiet --no-pager --output=short-iso --lines=5000)
  [ -n "$log" ] || log=$(dmesg)
  [ -n "$log" ] || return
  echo "== log"
  printf '%s\n' "$log" | grep -F 'NVRM:' | tail -n 200
}
exec 2>/dev/null
look 0.5
echo "== page"; getconf PAGESIZE
echo "== blocks"; cat /proc/buddyinfo
echo "== pressure"; cat /proc/pressure/memory
echo "== kernel"; uname -r; cat /proc/cmdline
echo "== firmware"
echo "BIOS $(cat /sys/class/dmi/id/bios_version)"
for file in /sys/class/infiniband/*/fw_ver; do
  [ -e "$file" ] || continue
  echo "ConnectX $(cat "$file")"
done
echo "== links"; find /dev/char -name '195:*' | wc -l
echo "== programs"; ps -eo comm= | sort -u
sleep 0.6 &
driver_log
wait
look 0.4
