#!/usr/bin/env bash
# Runs evojax on one or several TPU slices of a Kubernetes cluster (GKE with
# JobSet, jobset.sigs.k8s.io):
#
#   bash launch/jobset.sh --name=math --image=IMAGE \
#     --accelerator=tpu-v5p-slice --topology=2x2x2 --slices=2 \
#     --volume=CLAIM:/mnt --config=configs/math.py:qwen3_8b \
#     --config.model.path=/mnt/models/Qwen3-8B --workdir=/mnt/runs/math
#
#   --image         image with the checkout in /evojax, and Python >= 3.11
#   --accelerator, --topology   values of the node pool's labels
#   --slices        number of slices (1), which share each batch, see
#                   config.mesh.slice
#   --chips_per_host  chips per host (4)
#   --volume        CLAIM:PATH, a volume claim that all hosts mount; the workdir
#                   is below PATH, or in a bucket (--workdir=gs://BUCKET/x)
#   --restarts      largest number of restarts (10)
#   --spot          use spot machines
#   --dry_run       print the YAML, for `kubectl apply -f -`, and start nothing
#
# All other flags are passed to evojax. If a host is lost, JobSet ends all
# processes and starts them again from the last checkpoint, up to --restarts
# times. Exit status 1, an exception, and 2, a wrong command, end the run.
set -euo pipefail
CDPATH= cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
source launch/environment.sh

name='' image='' accelerator='' topology='' volume='' spot=''
slices=1 chips=4 restarts=10
take_dry_run "$@"
flags=()
for flag in ${rest[@]+"${rest[@]}"}; do
  value="${flag#*=}"
  case "$flag" in
    --name=*) name="$value" ;;
    --image=*) image="$value" ;;
    --accelerator=*) accelerator="$value" ;;
    --topology=*) topology="$value" ;;
    --slices=*) slices="$value" ;;
    --chips_per_host=*) chips="$value" ;;
    --volume=*) volume="$value" ;;
    --restarts=*) restarts="$value" ;;
    --spot) spot=1 ;;
    *) flags+=("$flag") ;;
  esac
done

refuse() {
  echo "error: $1" >&2
  exit 2
}
# Suffixes are added to the names of jobs and pods; the limit is 63 characters.
[[ "$name" =~ ^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$ ]] ||
  refuse "--name=$name: wanted at most 40 of a-z, 0-9 and -, such as math"
[[ "$image" =~ ^[^\'[:space:]]+$ ]] ||
  refuse "--image=$image: name one that holds the checkout"
[[ "$accelerator" =~ ^[a-z0-9-]+$ ]] ||
  refuse "--accelerator=$accelerator: wanted a label such as tpu-v5p-slice"
[[ "$topology" =~ ^[1-9][0-9]*(x[1-9][0-9]*){1,2}$ ]] ||
  refuse "--topology=$topology: wanted chips along each axis, such as 2x2x4"
for number in "slices=$slices" "chips_per_host=$chips"; do
  [[ "${number#*=}" =~ ^[1-9][0-9]*$ ]] ||
    refuse "--$number: wanted a number above 0"
done
[[ "$restarts" =~ ^[0-9]+$ ]] || refuse "--restarts=$restarts: wanted a number"
[[ -z "$volume" || "$volume" =~ ^[a-z0-9.-]+:/[^\'[:space:]]*$ ]] ||
  refuse "--volume=$volume: wanted CLAIM:PATH, such as runs:/mnt"
total=$((${topology//x/*}))
[[ $total -ge $chips ]] || chips=$total
[[ $((total % chips)) -eq 0 ]] ||
  refuse "--topology=$topology has $total chips, which are not whole hosts of \
--chips_per_host=$chips"
hosts=$((total / chips))

# The workdir of evojax, which the pods run in /evojax.
workdir="$(workdir_of runs ${flags[@]+"${flags[@]}"})"
[[ "$workdir" == /* ]] || workdir="/evojax/$workdir"
path="${volume#*:}"
# Otherwise every pod would have its own workdir, which is lost with the pod, so
# that even a single pod could not continue its run or leave a policy.
if [[ "$workdir" != *://* ]] &&
  [[ -z "$volume" || "$workdir/" != "${path%/}/"* ]]; then
  refuse "--workdir=$workdir is on the disk of a pod, and is lost with it: \
mount a volume with --volume=CLAIM:PATH and name a --workdir below PATH, or \
one in a bucket, such as gs://BUCKET/x"
fi

if [[ $slices -gt 1 && "${flags[*]-}" != *--config.mesh.slice[=\ ]* ]]; then
  flags+=("--config.mesh.slice=$slices")
fi

# item INDENT TEXT: prints one item of a YAML list, quoted.
item() {
  printf "%$1s- '%s'\n" '' "${2//\'/\'\'}"
}

yaml() {
  cat <<EOF
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: $name
  annotations:
    # Every job gets a slice of its own.
    alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool
spec:
  failurePolicy:
    maxRestarts: $restarts
    rules:
    - name: usersError
      action: FailJobSet
      onJobFailureReasons: [PodFailurePolicy]
  replicatedJobs:
  - name: slice
    replicas: $slices
    template:
      spec:
        parallelism: $hosts
        completions: $hosts
        completionMode: Indexed
        backoffLimit: 0 # If one pod fails, JobSet restarts all of them.
        podFailurePolicy:
          rules:
          - action: FailJob
            onExitCodes:
              containerName: evojax
              operator: In
              # A process whose peer was lost ends with 75, not with 1.
              values: [1, 2]
        template:
          spec:
            restartPolicy: Never
            terminationGracePeriodSeconds: 60 # Time to save a checkpoint.
            nodeSelector:
              cloud.google.com/gke-tpu-accelerator: $accelerator
              cloud.google.com/gke-tpu-topology: $topology
EOF
  if [[ -n "$spot" ]]; then
    cat <<EOF
              cloud.google.com/gke-spot: "true"
            tolerations:
            - key: cloud.google.com/gke-spot
              operator: Equal
              value: "true"
              effect: NoSchedule
EOF
  fi
  cat <<EOF
            containers:
            - name: evojax
              image: '$image'
              workingDir: /evojax
              env:
              - name: EVOJAX_RESTARTS # 0, because JobSet restarts the pods.
                value: "0"
              resources:
                limits:
                  google.com/tpu: $chips
              command:
EOF
  item 14 bash
  item 14 launch/tpu_pod.sh
  for flag in ${flags[@]+"${flags[@]}"}; do
    item 14 "$flag"
  done
  if [[ -n "$volume" ]]; then
    cat <<EOF
              volumeMounts:
              - name: shared
                mountPath: '${volume#*:}'
            volumes:
            - name: shared
              persistentVolumeClaim:
                claimName: '${volume%%:*}'
EOF
  fi
}

if [[ -n "$dry_run" ]]; then
  echo "# python -m evojax.main on $slices x $hosts hosts of $chips chips"
  yaml
else
  command -v kubectl >/dev/null ||
    refuse 'there is no `kubectl` here; --dry_run prints the YAML for it'
  yaml | kubectl apply -f -
fi
