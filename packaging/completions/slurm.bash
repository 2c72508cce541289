# bash completion for the container options of srun, sbatch and salloc. Their first completion loads
# the script, which takes over Slurm's own completion: no program runs when a shell starts.
_spank_container_load() {
    complete -r srun sbatch salloc
    source <(scontainer completion bash)
    return 124 # completes again, with what is loaded now
}
complete -F _spank_container_load srun sbatch salloc
