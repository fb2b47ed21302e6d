#!/bin/sh
# written by `sparkdeploy export prometheus`.
# Tells node-exporter every five seconds what the GPUs draw, at which clock, how warm: it writes
# textfile/gpu-N.prom beside itself. A Spark's nvidia-smi knows no memory, and its utilisation
# misleads. What nvidia-smi does not tell ([N/A]) is left out. It ends with nvidia-smi, or by a signal.
set -u
folder="$(cd "$(dirname "$0")" && pwd)/textfile"
mkdir -p "$folder"
trap 'rm -f "$folder"/gpu-*.prom "$folder"/.gpu-*' EXIT
# nvidia-smi ends when it next writes and nobody reads.
trap 'kill "$!" 2>/dev/null; exit 0' INT TERM HUP

gauge() { # name, what it is, GPU, value
  case $4 in '' | *[!0-9.]*) return ;; esac
  printf '# HELP %s %s\n# TYPE %s gauge\n%s{gpu="%s"} %s\n' "$1" "$2" "$1" "$1" "$3" "$4"
}

nvidia-smi --query-gpu=index,power.draw,clocks.sm,temperature.gpu --format=csv,noheader,nounits \
  --loop=5 | while IFS=', ' read -r gpu watts megahertz celsius; do
  case $gpu in '' | *[!0-9]*) continue ;; esac
  {
    gauge sparkdeploy_gpu_power_watts 'What the GPU draws.' "$gpu" "$watts"
    gauge sparkdeploy_gpu_clock_megahertz 'Clock of its multiprocessors.' "$gpu" "$megahertz"
    gauge sparkdeploy_gpu_temperature_celsius 'How warm it is.' "$gpu" "$celsius"
  } >"$folder/.gpu-$gpu" && mv "$folder/.gpu-$gpu" "$folder/gpu-$gpu.prom"
done &
wait "$!"
