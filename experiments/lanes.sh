#!/usr/bin/env bash
# Run several benchmark files side by side on one GPU, for a GPU that is lent for minutes.
#
#   bash experiments/lanes.sh LANES OUT DATA MINUTES
#
# LANES is a text file with one lane a line: the yaml file, the folder below DATA, the number of processes, and further options of
# `ttdg bench`. Lanes run at the same time. Those of the same folder share their models, OUT/models-FOLDER:
#
#   experiments/strong-polyp.yaml polyp 8 --encoder-weights resnet50.safetensors --seed 0 --only "batch 4" --only "batch 16"
#   experiments/strong-fundus.yaml fundus 6 --encoder-weights resnet50.safetensors --seed 0 --only "batch 4" --only "batch 16"
#
# Every lane trains with CUDA graphs, then fits and scores without them, which is fastest for many processes (docs/scaling.md). After MINUTES
# everything stops; the same command continues. The run of line N is OUT/N-NAME, and OUT/lanes.log says when its phases began and ended.
set -u
lanes=$1 out=$2 data=$3 end=$(($(date +%s) + 60 * $4))
mkdir -p "$out"
command -v nvidia-cuda-mps-control > /dev/null && nvidia-cuda-mps-control -d # processes share the GPU; fails if it runs already

say() { echo "$(date +%T) $*" >> "$out/lanes.log"; }

lane() { # number, then the words of the line
  local run="$1-$(basename "$2" .yaml)" file=$2 folder=$3 workers=$4
  shift 4
  for phase in train score; do
    local left=$(($(date +%s) < end ? end - $(date +%s) : 0))
    say "$run: $phase begins, $left s are left"
    TTDG_GRAPHS=$([ $phase = train ] && echo 1 || echo 0) ${TTDG:-ttdg} bench "$file" --data "$data/$folder" \
      --models "$out/models-$folder" --out "$out/$run" --workers "$workers" --threads 1 --until $phase \
      --stop-after "$(awk "BEGIN { print $left / 60 }")" "$@" >> "$out/$run.log" 2>&1
    say "$run: $phase ends with status $?"
  done
}

number=0
while IFS= read -r line; do
  [ -z "${line%%#*}" ] && continue
  number=$((number + 1))
  eval "lane $number $line" &
done < "$lanes"
wait
